-- @include parts/policy
-- The max event times of substreams. Under a constant lag, the watermark of an active substream is usually its max event
-- time - lag. Such a substream has no entry in key.max_event_times, which saves a quarter of the memory and the time.
local number, highest, minus = values.number, values.highest, values.minus
local max_event_times = {}

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

function max_event_times.of_one(member)
  return max_event_times.of({member})[1] or nil
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

return max_event_times
