-- @include parts/evaluate
-- @include parts/staging
-- Observation: apply event times and reported watermarks to substreams. See tidegate.domain.observation.
-- Each column has one entry per member: a number or null.
local number, text, score, highest, minus = values.number, values.text, values.score, values.highest, values.minus
local job, config = state.job, state.config
local observation = {}

local function accepts_watermarks(member)
  return policy.of(member).accepts_watermarks
end

-- Refuse watermarks without event times, unless the policies of their members accept watermarks.
function observation.check_event_times(members, event_times, watermarks)
  if not next(watermarks) then return end
  local missing = {}
  for i, member in ipairs(members) do
    if not number(event_times[i]) and number(watermarks[i]) and not accepts_watermarks(member) then
      missing[#missing + 1] = member
    end
  end
  if #missing > 0 then values.refuse('event_time_missing', {substreams = missing}) end
end

-- Refuse members beyond the limit of the job. Staged substreams of open batches count towards the limit; placeholders
-- do not count.
function observation.check_room(members)
  local limit = args.max_substreams
  if not limit then return end
  local size, coming = redis.call('ZCARD', key.max_event_times), #members
  local open = state.changes.is_plain and {} or redis.call('ZRANGE', key.open_batches, 0, -1)
  for _, query in ipairs(open) do coming = coming + (tonumber(redis.call('HGET', key.query(query), 'staged')) or 0) end
  if size + coming <= limit then return end
  size = size - redis.call('SCARD', key.missing_queries)
  if size + coming <= limit then return end
  local new, is_new = 0, {}
  local function count(some)
    local known = bulk.zmscore(key.max_event_times, some)
    for i, member in ipairs(some) do
      if not known[i] and not is_new[member] then new, is_new[member] = new + 1, true end
    end
  end
  count(members)
  if new == 0 then return end
  for _, query in ipairs(open) do count(staging.read(query).members) end
  if size + new > limit then values.refuse('too_many_substreams', {limit = limit}) end
end

-- Return a table in which members that the job has are true. Later steps of a command must not remove members.
function observation.known(members)
  local known, new = state.changes.known, {}
  for _, member in ipairs(members) do
    if not known[member] then new[#new + 1] = member end
  end
  for i, event_time in ipairs(bulk.zmscore(key.max_event_times, new)) do known[new[i]] = event_time and true end
  return known
end

-- Return the latest event time that is accepted; nil if max_future_skew_ms is off.
function observation.latest_event_time()
  if config.max_future_skew_ms then return math.min(job.now + config.max_future_skew_ms, values.HIGHEST) end
end

-- Add to the counters of known members only, because the number of unknown members is unbounded. A member occurs once.
function observation.count_rows(class, members, rows)
  local known, fields, amounts, n = observation.known(members), {}, {}, 0
  for i, member in ipairs(members) do
    if known[member] then
      n = n + 1
      fields[n], amounts[n] = class .. ' ' .. member, rows[i]
    end
  end
  bulk.add_each(key.rows, fields, amounts)
end

function observation.count_future(members, rows)
  observation.count_rows('future_rows', members, rows)
  for _, count in ipairs(rows) do bulk.add(key.job, 'future_rows', values.text(count)) end
end

-- Count and remove entries too far ahead of the clock; return the remaining columns. min_event_times may be nil.
function observation.set_aside_future(query, members, event_times, watermarks, min_event_times)
  local latest = observation.latest_event_time()
  if not latest then return members, event_times, watermarks, min_event_times end
  local future, ones, kept = {}, {}, {members = {}, event_times = {}, watermarks = {}, min_event_times = {}}
  for i, member in ipairs(members) do
    if (number(event_times[i]) or latest) > latest or (number(watermarks[i]) or latest) > latest then
      future[#future + 1], ones[#ones + 1] = member, 1
    else
      local at = #kept.members + 1
      kept.members[at], kept.event_times[at], kept.watermarks[at] = member, event_times[i], watermarks[i]
      kept.min_event_times[at] = min_event_times and min_event_times[i]
    end
  end
  if #future == 0 then return members, event_times, watermarks, min_event_times end
  observation.count_future(future, ones)
  journal.write_substreams('future', query, future)
  return kept.members, kept.event_times, kept.watermarks, kept.min_event_times
end

-- Remove the placeholder of a query that now has a substream.
function observation.remove_placeholder(query)
  if redis.call('SREM', key.missing_queries, query) == 0 then return end
  local names = {key.max_event_times, key.active, key.frozen, key.forced_idle, key.last_events(query),
    key.idle(query)}
  for _, name in ipairs(names) do redis.call('ZREM', name, query .. '/') end
end

-- Add substreams without events.
function observation.add_substreams(query, members, observed)
  if query ~= '' then
    redis.call('SADD', key.query_names, query)
    observation.remove_placeholder(query)
  end
  local flat, clock_driven_ones = policy.by_kind(members)
  bulk.zadd_all(key.max_event_times, '-inf', members)
  bulk.zadd_all(key.since, text(job.now), members)
  bulk.zadd_all(key.last_events(query), text(observed), members)
  bulk.zadd_all(key.active, '-inf', flat)
  for _, member in ipairs(clock_driven_ones) do advancing.observe(member) end
end

local function has_numbers_only(column, length)
  for i = 1, length do
    if type(column[i]) ~= 'number' then return false end
  end
  return true
end

-- Return the entries that have an effect. Entries of done substreams have no effect. A watermark has an effect if the
-- policy accepts watermarks and the watermark of the substream is lower.
local function effective(members, event_times, watermarks)
  local done, active, frozen = {}, {}, {}
  if not state.changes.is_plain and redis.call('EXISTS', key.done) == 1 then done = bulk.zmscore(key.done, members) end
  if not next(watermarks) and not next(done) and has_numbers_only(event_times, #members) then
    return members, event_times, {}
  end
  if next(watermarks) then active, frozen = bulk.zmscore(key.active, members), bulk.zmscore(key.frozen, members) end
  local names, times, reported, n = {}, {}, {}, 0
  for i, member in ipairs(members) do
    if not done[i] then
      local time, watermark = number(event_times[i]), number(watermarks[i])
      if watermark and not (accepts_watermarks(member) and values.above(watermark, number(active[i] or frozen[i]))) then
        watermark = nil
      end
      if time or watermark then
        n = n + 1
        names[n], times[n], reported[n] = member, time, watermark
      end
    end
  end
  return names, times, reported
end

local function observe_clock_driven(members, times)
  if #members == 0 then return end
  local lines, before = bulk.hmget(key.clock_driven, members), bulk.zmscore(key.max_event_times, members)
  for i, member in ipairs(members) do advancing.observe(member, lines[i], times[i], number(before[i])) end
end

-- Append watermarks under learned lags to `flat`. A shorter lag also raises a watermark.
local function observe_targets(members, times, flat)
  if #members == 0 then return end
  local before, lags = bulk.zmscore(key.max_event_times, members), policy.lags_of(members)
  for i, member in ipairs(members) do
    flat[#flat + 1], flat[#flat + 2] = score(minus(highest(times[i], number(before[i])), lags[i])), member
  end
end

-- Apply event times and watermarks to the substreams of a query. observed: the observed time of the query.
-- Return the members whose entries had an effect.
function observation.observe(query, members, event_times, watermarks, observed)
  local names, times, reported = effective(members, event_times, watermarks)
  if #names == 0 then return names end
  if query ~= '' then observation.remove_placeholder(query) end
  idleness.reactivate(query, names)
  local scored, last_events, flat, flat_size, latest = {}, {}, {}, 0, nil
  local clock_driven_ones, clock_driven_times, targets, target_times = {}, {}, {}, {}
  for i, member in ipairs(names) do
    local rule, time = policy.of(member), times[i]
    if time and (not latest or time > latest) then latest = time end
    scored[2 * i - 1], scored[2 * i] = score(time), member
    last_events[2 * i - 1], last_events[2 * i] = observed, member
    if rule.limit then
      clock_driven_ones[#clock_driven_ones + 1], clock_driven_times[#clock_driven_ones + 1] = member, time
    elseif policy.is_target(rule) then
      targets[#targets + 1], target_times[#targets + 1] = member, time
    else
      local watermark = reported[i]
      if rule.initial_lag then watermark = minus(time, rule.initial_lag) end
      flat[flat_size + 1], flat[flat_size + 2] = score(watermark), member
      flat_size = flat_size + 2
    end
  end
  job.max_event_time = highest(latest, job.max_event_time)
  observe_clock_driven(clock_driven_ones, clock_driven_times)
  observe_targets(targets, target_times, flat)
  if bulk.zadd(key.max_event_times, 'GT', scored) > 0 then bulk.zadd_all(key.since, text(job.now), names, 'NX') end
  bulk.zadd(key.active, 'GT', flat)
  bulk.zadd(key.last_events(query), nil, last_events)
  return names
end

return observation
