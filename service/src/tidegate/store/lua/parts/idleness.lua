-- @include parts/journal
-- @include parts/queries
-- @include parts/advancing
-- @include parts/max_event_times
-- Idleness: silent substreams do not hold the merged watermark. See tidegate.domain.idleness.
local number, score, highest = values.number, values.score, values.highest
local job, config = state.job, state.config
local idleness = {}
local MAX_MADE_IDLE = 500  -- in one function call

-- Remove members from the merge and keep their watermarks; return those that follow the clock.
local function freeze_flat(members)
  local flat, clock_driven_ones = policy.by_kind(members)
  local event_times = max_event_times.of(flat)
  bulk.zadd_each(key.frozen, bulk.zmscore(key.active, flat), flat)
  bulk.zrem(key.active, flat)
  max_event_times.store(flat, event_times)
  return clock_driven_ones
end

local function freeze_clock_driven(members)
  if #members > 0 then bulk.zadd_each(key.frozen, advancing.freeze(members), members) end
end

-- Remove members from the merge for good. Their watermarks stay constant.
function idleness.freeze(members)
  freeze_clock_driven(freeze_flat(members))
end

-- Make active members of a query idle. last_events: their last events. Return whether any member follows the clock.
function idleness.set_idle(query, members, last_events)
  local clock_driven_ones = freeze_flat(members)
  if config.freezes_idle then freeze_clock_driven(clock_driven_ones) else advancing.make_idle(clock_driven_ones) end
  bulk.zadd_each(key.idle(query), last_events, members)
  bulk.zrem(key.last_events(query), members)
  bulk.zadd_all(key.since, job.now, members)
  return #clock_driven_ones > 0
end

-- Make members of a query idle whose last event is at or before `until_`. forced: the reason is not silence. Return
-- whether any member follows the clock, and whether members remain for the next function call.
local function make_idle(query, until_, limit, forced)
  local room = MAX_MADE_IDLE - state.changes.made_idle
  local found = redis.call('ZRANGE', key.last_events(query), '-inf', until_, 'BYSCORE', 'LIMIT', 0, room + 1,
    'WITHSCORES')
  local members, last_events = {}, {}
  for i = 1, math.min(#found, 2 * room), 2 do
    members[#members + 1], last_events[#last_events + 1] = found[i], found[i + 1]
  end
  local remain = #found > 2 * room
  if remain then state.changes.is_unfinished = true end
  if #members == 0 then return false, remain end
  state.changes.made_idle = state.changes.made_idle + #members
  local has_left = idleness.set_idle(query, members, last_events)
  if forced then bulk.zadd_all(key.forced_idle, 0, members) end
  journal.count_limit(limit)
  journal.write_substreams('idle', query, members, 'limit', limit)
  return has_left, remain
end

-- Make substreams of a query idle that are silent by its idle clock. The next evaluation continues if some remain.
function idleness.expire(query, idle_clock)
  if not config.idle_timeout_ms or not idle_clock or job.is_complete then return false end
  local has_left, remain = make_idle(query, idle_clock - config.idle_timeout_ms, 'idle_timeout_ms', false)
  if remain and query ~= '' then
    job.expiring = job.expiring or {}
    job.expiring[query] = true
  end
  return has_left
end

-- Continue what earlier calls of expire() have left.
function idleness.expire_remaining()
  local unfinished, has_left = job.expiring or {}, false
  job.expiring = nil
  for query in pairs(unfinished) do has_left = idleness.expire(query, queries.get(query).idle_clock) or has_left end
  return has_left
end

-- Make all substreams of a query idle after query_timeout_ms without a call.
function idleness.time_out_queries()
  if not config.query_timeout_ms then return false end
  local has_left, last = false, job.observed_now - config.query_timeout_ms
  for _, query in ipairs(redis.call('ZRANGE', key.last_seen, '-inf', last, 'BYSCORE')) do
    local left, remain = make_idle(query, math.huge, 'query_timeout_ms', true)
    has_left = left or has_left
    if not remain then redis.call('ZREM', key.last_seen, query) end
  end
  return has_left
end

-- Make idle members active, with their stored watermarks. under_new_lag: raise each watermark to max event time - lag,
-- because the lag may have changed.
function idleness.activate(query, members, under_new_lag)
  local idle, active, last_events = bulk.zmscore(key.idle(query), members), {}, {}
  for i, member in ipairs(members) do
    if idle[i] then
      active[#active + 1] = member
      last_events[#last_events + 1], last_events[#last_events + 2] = idle[i], member
    end
  end
  if #active == 0 then return active end
  local flat, clock_driven_ones = policy.by_kind(active)
  local watermarks, event_times = bulk.zmscore(key.frozen, flat), max_event_times.of(flat)
  local scored = {}
  for i, member in ipairs(flat) do
    local watermark, max_event_time = number(watermarks[i]), event_times[i]
    local lag = under_new_lag and max_event_time and policy.flat_lag(policy.of(member), member)
    if lag then watermark = highest(watermark, values.minus(max_event_time, lag)) end
    scored[#scored + 1], scored[#scored + 2] = score(watermark), member
  end
  bulk.zadd(key.active, nil, scored)
  max_event_times.store(flat, event_times)
  if #clock_driven_ones > 0 then advancing.make_active(clock_driven_ones) end
  bulk.zadd(key.last_events(query), nil, last_events)
  for _, name in ipairs({key.frozen, key.idle(query), key.forced_idle}) do bulk.zrem(name, active) end
  bulk.zadd_all(key.since, job.now, active)
  return active
end

-- Make those members active that were idle, because they have events. Return them.
function idleness.reactivate(query, members)
  if state.changes.is_plain or redis.call('EXISTS', key.idle(query)) == 0 then return {} end
  return idleness.activate(query, members, true)
end

-- Return the state of a member at an observed time of its query, and its last event in observed time.
function idleness.state_of(query, member, observed)
  local last_event = tonumber(redis.call('ZSCORE', key.last_events(query), member) or nil)
  if last_event then
    local is_silent = config.idle_timeout_ms and observed - last_event >= config.idle_timeout_ms
    return is_silent and 'blocked' or 'active', last_event
  end
  last_event = redis.call('ZSCORE', key.idle(query), member)
  if last_event then return 'idle', tonumber(last_event) end
  return 'done', tonumber(redis.call('ZSCORE', key.done, member))
end

return idleness
