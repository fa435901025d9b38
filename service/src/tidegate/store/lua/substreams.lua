-- @include policies
-- The sorted sets of the substreams: which members a job has, and their max event times. For the watermarks that follow
-- the clock, see followers.lua.
local number, highest, minus = values.number, values.highest, values.minus
local config, job = state.config, state.job
local membership, max_event_times = {}, {}

-- The members of a job. Each member is in exactly one of these sorted sets.

-- Return the sorted sets of the counting substreams, each with the number that turns a score into the watermark at the
-- last evaluation, by addition.
function membership.counting_sets()
  if not config.has_followers then return {{key.active, 0}} end
  return {{key.active, 0}, {key.constant, 0}, {key.advancing, job.evaluated or 0}}
end

local function counting()
  local names = {}
  for i, set in ipairs(membership.counting_sets()) do names[i] = set[1] end
  return names
end

local function all_sets()
  local sets = counting()
  sets[#sets + 1] = key.frozen
  if config.has_followers then sets[#sets + 1], sets[#sets + 2] = key.idle_constant, key.idle_advancing end
  return sets
end

local function size_of(sets)
  local size = 0
  for _, name in ipairs(sets) do size = size + redis.call('ZCARD', name) end
  return size
end

-- Return the number of members, with placeholders.
function membership.count() return size_of(all_sets()) end
function membership.number_counting() return size_of(counting()) end

function membership.all()
  local members = {}
  for _, name in ipairs(all_sets()) do
    for _, member in ipairs(redis.call('ZRANGE', name, 0, -1)) do members[#members + 1] = member end
  end
  return members
end

-- Return a column: true for each member that the job has, or else false.
function membership.known(members)
  local is_known, known, present, rest = {}, {}, nil, members
  for _, name in ipairs(all_sets()) do
    present, rest = bulk.split_by_set(name, rest)
    for _, member in ipairs(present) do is_known[member] = true end
    if #rest == 0 then break end
  end
  for i, member in ipairs(members) do known[i] = is_known[member] or false end
  return known
end

-- Return the members that the job has, and the other members, both in order.
function membership.split(members) return bulk.split(members, membership.known(members)) end

-- Return the watermark of each member at the last evaluation, or false.
function membership.watermarks(members)
  local active, frozen, found = bulk.zmscore(key.active, members), bulk.zmscore(key.frozen, members), {}
  local follower_members, places = {}, {}
  for i, member in ipairs(members) do
    found[i] = number(active[i] or frozen[i]) or false
    if not active[i] and not frozen[i] then follower_members[#follower_members + 1], places[#places + 1] = member, i end
  end
  for at, packed in ipairs(bulk.hmget(key.clock_driven, follower_members)) do
    local watermark = packed and follower.own_watermark(follower.read(packed), policy.of(follower_members[at]))
    found[places[at]] = watermark or false
  end
  return found
end

-- The max event times of substreams. Under a constant lag, the watermark of an active substream is usually its max event
-- time - lag. Such a substream has no entry in key.max_event_times, which saves a quarter of the memory and the time.

-- Return the max event time of each member, or false. policies: those under which the watermarks were stored.
function max_event_times.of(members, policies)
  policies = policies or state.config.policies
  local found = bulk.zmscore(key.max_event_times, members)
  local lagging, places = {}, {}
  for i, member in ipairs(members) do
    if not found[i] and policy.constant_lag(policy.among(policies, member)) then
      lagging[#lagging + 1], places[#places + 1] = member, i
    end
    found[i] = number(found[i]) or false
  end
  for at, watermark in ipairs(#lagging > 0 and bulk.zmscore(key.active, lagging) or {}) do
    watermark = number(watermark)
    found[places[at]] = watermark and watermark + policy.constant_lag(policy.among(policies, lagging[at])) or false
  end
  return found
end

-- Store max event times (false: none). Call this after the watermarks of active members were stored.
function max_event_times.store(members, column)
  local watermarks, scored, removed = bulk.zmscore(key.active, members), {}, {}
  for i, member in ipairs(members) do
    local lag, watermark = policy.constant_lag(policy.of(member)), number(watermarks[i])
    if column[i] == (lag and watermark and watermark + lag or false) then
      removed[#removed + 1] = member
    else
      scored[#scored + 1], scored[#scored + 2] = values.score(column[i] or nil), member
    end
  end
  bulk.zadd(key.max_event_times, nil, scored)
  bulk.zrem(key.max_event_times, removed)
end

-- Return the members under a constant lag that have an entry, or whose watermarks are out of range, and their max event
-- times after events at these times. Pass these columns to store().
function max_event_times.exceptions(members, times, is_out_of_range)
  local exceptions, latest = {}, {}
  if not is_out_of_range and redis.call('EXISTS', key.max_event_times) == 0 then return exceptions, latest end
  for i, entry in ipairs(bulk.zmscore(key.max_event_times, members)) do
    if entry or not minus(times[i], policy.constant_lag(policy.of(members[i]))) then
      exceptions[#exceptions + 1], latest[#latest + 1] = members[i], times[i]
    end
  end
  for i, before in ipairs(max_event_times.of(exceptions)) do latest[i] = highest(latest[i], before or nil) end
  return exceptions, latest
end

return membership, max_event_times
