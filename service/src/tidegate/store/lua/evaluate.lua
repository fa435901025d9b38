-- @include followers
-- @include history
-- @include limits
-- Everything between a change and an emitted watermark, as in tidegate.domain.evaluate. The evaluation decides which
-- substreams count, merges their watermarks, applies retention, holds and the throttle to get C, and emits W.
--
-- To bound the time of a function call, an evaluation applies a limited number of pending changes. The others are due
-- immediately; until then, the substreams that they concern hold C.
local number, score, highest, above = values.number, values.score, values.highest, values.above
local job, config = state.job, state.config
local evaluate, holds, idleness, throttle, emission = {}, {}, {}, {}, {}

-- The evaluation

-- Record the limits that let C pass members.
local function record_limits(is_retained)
  local others = is_retained and 'max_retention_ms'
  if not above(job.coalesced_watermark, limits.arrival_bound()) then others = 'arrival_target' end
  for _, group in ipairs(limits.passed(others)) do
    local count, rows = limits.below(group, job.coalesced_watermark)
    if count > 0 then
      local names, passed = {}, state.changes.passed
      for i, row in ipairs(rows) do names[i] = row.member end
      history.count_limit(group.limit)
      passed[#passed + 1] = {limit = group.limit, count = count, substreams = names}
    end
  end
end

-- Let the limits act that exclude substreams, batches and holds. Return whether a substream that follows the clock
-- became idle.
function evaluate.exclude()
  holds.expire()
  holds.release_overdue_batches()
  local has_left = idleness.time_out_queries()
  has_left = idleness.time_out_remaining() or has_left
  return idleness.time_out_substreams('', job.observed_now) or has_left
end

-- cap: bound of watermarks that follow the clock. is_sweep: retention may act. has_left: a substream that follows the clock
-- became idle in this command.
local function run(cap, is_sweep, has_left)
  if job.is_complete then return end
  has_left = evaluate.exclude() or has_left
  local before, was_all_idle = job.coalesced_watermark, job.all_idle
  local is_retained = emission.merge(cap, is_sweep, has_left)
  if above(job.coalesced_watermark, before) then record_limits(is_retained) end
  if was_all_idle and not job.all_idle then
    history.write('not_all_idle')
  elseif job.all_idle and not was_all_idle and (membership.count() == 0
    or redis.call('ZCARD', key.frozen) + redis.call('ZCARD', key.idle_lagged) > redis.call('ZCARD', key.done)) then
    history.write('all_idle')
  end
  emission.emit()
  emission.count_wait(before)
end

-- Evaluate the job after a change. has_left: a substream that follows the clock became idle in this command.
function evaluate.evaluate(has_left) run(nil, false, has_left) end

-- Evaluate the job after a report without a batch. cap: the lowest event time of the report.
function evaluate.after_report(cap) run(cap, false) end

-- Evaluate the job because time has passed. Retention acts in sweeps only.
function evaluate.sweep() run(nil, true) end

-- Evaluate the job before a read. An empty job has nothing to evaluate, and a read of it records nothing.
function evaluate.sweep_for_read() if job.all_idle or membership.count() > 0 then run(nil, true) end end

-- Holds and open batches: what keeps C or W back until it ends

-- Return the lowest hold, which limits C, and its value.
function holds.lowest()
  if state.changes.is_plain then return nil end
  return values.lowest_of(key.holds)
end

-- Return the lower of the watermark and the lowest hold.
function holds.cap(watermark)
  local _, at_most = holds.lowest()
  if at_most and watermark then return math.min(watermark, at_most) end
  return watermark
end

-- Return all holds, lowest first.
function holds.in_order()
  local found, unattended = {}, job.unattended
  for _, hold in ipairs(redis.call('ZRANGE', key.holds, 0, -1)) do
    local expires = number(redis.call('ZSCORE', key.hold_expiry, hold))
    found[#found + 1] = {map = {hold = hold, at_most = number(redis.call('ZSCORE', key.holds, hold)),
      expires_ms = expires and expires + unattended, reason = redis.call('HGET', key.hold_reasons, hold)}}
  end
  return found
end

function holds.remove(hold)
  redis.call('ZREM', key.holds, hold)
  redis.call('ZREM', key.hold_expiry, hold)
  redis.call('HDEL', key.hold_reasons, hold)
end

function holds.expire()
  if state.changes.is_plain then return end
  for _, hold in ipairs(redis.call('ZRANGE', key.hold_expiry, '-inf', job.observed_now, 'BYSCORE')) do
    holds.remove(hold)
    history.write('hold_expired', 'hold', hold)
  end
end

-- Stop open batches from holding W after max_batch_hold_ms.
function holds.release_overdue_batches()
  if not config.max_batch_hold_ms then return end
  local last = job.observed_now - config.max_batch_hold_ms
  for _, query in ipairs(redis.call('ZRANGE', key.open_batches, '-inf', last, 'BYSCORE')) do
    redis.call('ZADD', key.open_batches, '+inf', query)
    redis.call('ZREM', key.open_pins, query)
    history.count_limit('max_batch_hold_ms')
    queries.get(query).released = true
    emission.place_unwritten(queries.get(query))
    history.write('batch_released', 'query', query, 'batch_id', queries.get(query).latest)
  end
end

-- Idleness: silent substreams do not hold the merged watermark
local MAX_MADE_IDLE = 500  -- in one function call

-- Remove members from the merge and keep their watermarks; return those that follow the clock.
local function freeze_flat(members)
  local flat, follower_members = policy.by_kind(members)
  local event_times = max_event_times.of(flat)
  bulk.zadd_each(key.frozen, bulk.zmscore(key.active, flat), flat)
  bulk.zrem(key.active, flat)
  max_event_times.store(flat, event_times)
  return follower_members
end

local function freeze_followers(members)
  if #members > 0 then bulk.zadd_each(key.frozen, followers.freeze(members), members) end
end

-- Remove members from the merge for good. Their watermarks stay constant.
function idleness.freeze(members) freeze_followers(freeze_flat(members)) end

-- Make active members of a query idle. last_events: their last events. Return whether any member follows the clock.
function idleness.set_idle(query, members, last_events)
  local follower_members = freeze_flat(members)
  if config.freezes_idle then freeze_followers(follower_members) else followers.make_idle(follower_members) end
  bulk.zadd_each(key.idle(query), last_events, members)
  bulk.zrem(key.last_events(query), members)
  bulk.zadd_all(key.since, job.now, members)
  return #follower_members > 0
end

-- Make members of a query idle because of a limit, and record it. Return whether any member follows the clock.
local function set_idle_by(limit, query, members, last_events)
  if #members == 0 then return false end
  state.changes.made_idle = state.changes.made_idle + #members
  local has_left = idleness.set_idle(query, members, last_events)
  history.count_limit(limit)
  history.write_substreams('idle', query, history.summary(members), 'limit', limit)
  return has_left
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
  local has_left = set_idle_by(limit, query, members, last_events)
  if forced then bulk.zadd_all(key.forced_idle, 0, members) end
  return has_left, remain
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

-- Make substreams of a query idle that are silent by its idle clock. The next evaluation continues if some remain.
function idleness.time_out_substreams(query, idle_clock)
  if not config.idle_timeout_ms or not idle_clock or job.is_complete then return false end
  local has_left, remain = make_idle(query, idle_clock - config.idle_timeout_ms, 'idle_timeout_ms', false)
  if remain and query ~= '' then
    job.expiring = job.expiring or {}
    job.expiring[query] = true
  end
  return has_left
end

-- Make those of the members of a query idle that were silent at an observed time, up to which all of their input was read.
-- Return whether any member follows the clock.
function idleness.time_out_caught_up(query, members, observed)
  if not config.idle_timeout_ms or job.is_complete then return false end
  local silent, of_silent = {}, {}
  for i, last_event in ipairs(bulk.zmscore(key.last_events(query), members)) do
    if last_event and observed - tonumber(last_event) >= config.idle_timeout_ms then
      silent[#silent + 1], of_silent[#of_silent + 1] = members[i], last_event
    end
  end
  return set_idle_by('idle_timeout_ms', query, silent, of_silent)
end

-- Continue what earlier calls of time_out_substreams() have left.
function idleness.time_out_remaining()
  local unfinished, has_left = job.expiring or {}, false
  job.expiring = nil
  for query in pairs(unfinished) do has_left = idleness.time_out_substreams(query, queries.get(query).idle_clock) or has_left end
  return has_left
end

-- Make idle members active, with their stored watermarks. under_new_lag: raise each watermark to max event time - lag,
-- because the lag may have changed.
function idleness.activate(query, members, under_new_lag)
  local active = bulk.split_by_set(key.idle(query), members)
  if #active == 0 then return active end
  local flat, follower_members = policy.by_kind(active)
  local watermarks, event_times = bulk.zmscore(key.frozen, flat), max_event_times.of(flat)
  for i, member in ipairs(flat) do
    local watermark, max_event_time = number(watermarks[i]), event_times[i]
    local lag = under_new_lag and max_event_time and policy.flat_lag(policy.of(member), member)
    if lag then watermark = highest(watermark, values.minus(max_event_time, lag)) end
    watermarks[i] = score(watermark)
  end
  bulk.zadd_each(key.active, watermarks, flat)
  max_event_times.store(flat, event_times)
  if #follower_members > 0 then followers.make_active(follower_members) end
  bulk.zmove(key.idle(query), key.last_events(query), active)
  for _, name in ipairs({key.frozen, key.forced_idle}) do bulk.zrem(name, active) end
  bulk.zadd_all(key.since, job.now, active)
  return active
end

-- Make those members active that were idle, because they have events. Return them.
function idleness.reactivate(query, members)
  if state.changes.is_plain or redis.call('EXISTS', key.idle(query)) == 0 then return {} end
  return idleness.activate(query, members, true)
end

-- Return the state of a member at an observed time of its query, and its last event in observed time. bound: see
-- limits.skew_bound (absent: the member is not skewed).
function idleness.state_of(query, member, observed, bound)
  local last_event = tonumber(redis.call('ZSCORE', key.last_events(query), member) or nil)
  if last_event then
    if bound and limits.is_skewed(member, bound) then return 'skewed', last_event end
    local is_silent = config.idle_timeout_ms and observed - last_event >= config.idle_timeout_ms
    return is_silent and 'blocked' or 'active', last_event
  end
  last_event = redis.call('ZSCORE', key.idle(query), member)
  if last_event then return 'idle', tonumber(last_event) end
  return 'done', tonumber(redis.call('ZSCORE', key.done, member))
end

-- The throttle limits how often C moves. Frame boundaries are exact on doubles.

-- Return the distance of a time from the last frame boundary at or before it.
local function past_boundary(time)
  local slide = config.throttle.slide
  return values.modulo(values.modulo(time, slide) - config.throttle.offset_ms, slide)
end

-- Return the watermark to which C may rise, at most the merged watermark; nil if C must not rise.
function throttle.candidate(merged)
  local kind = config.throttle.type
  if merged == nil or kind == 'none' then return merged end
  if kind == 'frame' then return values.minus(merged, past_boundary(merged)) end
  local last = job.coalesced_watermark
  if last == nil or merged >= last + config.throttle.min_step_ms then return merged end
end

-- Return the watermark that completes an input with this max event time: the end of its frame.
function throttle.end_after(max_event_time)
  if config.throttle.type ~= 'frame' then return math.min(max_event_time + 1, values.HIGHEST) end
  return math.min(max_event_time + (config.throttle.slide - past_boundary(max_event_time)), values.HIGHEST)
end

-- The coalesced watermark C

-- Return the max watermark of max_retention_ms ago; nil if retention does not act.
local function retained(has_risen, is_sweep)
  if not config.max_retention_ms or not (is_sweep or has_risen) then return nil end
  local h = job.retention or timestamp_history.start(config.max_retention_ms)
  local sampled = timestamp_history.sample(h, job.observed_now, job.max_watermark)
  job.retention = h
  return is_sweep and sampled or nil
end

-- Merge the counting substreams, and move C. cap: bound of watermarks that follow the clock. is_sweep: retention may
-- act. has_left: see followers.evaluate. Return whether retention moved C.
function emission.merge(cap, is_sweep, has_left)
  local before, max_before = job.coalesced_watermark, job.max_watermark
  state.changes.skew_bound, state.changes.slowest = nil, nil
  job.proven = config.arrival_target and limits.proven_until() or nil
  local lowest, is_unfinished, is_deferred = followers.evaluate(cap or math.huge, has_left)
  job.evaluation_due = (is_unfinished or state.changes.is_unfinished) and 1 or nil
  local first, flat = values.lowest_of(key.active)
  if first then
    lowest = math.min(lowest, flat or -math.huge)
    local _, last = values.highest_of(key.active)
    job.max_watermark = highest(last, job.max_watermark)
  end
  local minimum
  job.all_idle = lowest == math.huge and 1 or nil
  if job.all_idle then
    minimum = job.max_watermark
  else
    if lowest > -math.huge then
      minimum = config.max_skew_ms and not is_deferred and limits.lowest_within(lowest, cap or math.huge) or lowest
    end
    minimum = highest(minimum, limits.arrival_bound())
  end
  local merged = holds.cap(highest(retained(above(job.max_watermark, max_before), is_sweep), minimum))
  emission.advance(throttle.candidate(merged))
  if above(merged, job.merged_highest) then
    job.merged_highest = merged
    if above(merged, before) and job.coalesced_watermark == before then job.throttled = (job.throttled or 0) + 1 end
  end
  return above(job.coalesced_watermark, before) and above(job.coalesced_watermark, minimum)
end

-- Return the merged watermark: the value that C would have without the throttle.
function emission.merged_watermark() return highest(job.merged_highest, job.coalesced_watermark) end

-- Raise C to a watermark; a lower watermark changes nothing.
function emission.advance(coalesced_watermark)
  if above(coalesced_watermark, job.coalesced_watermark) then
    job.coalesced_watermark, job.coalesced_watermark_since = coalesced_watermark, job.now
  end
end

-- Add the latency of the event times in (before, C] to the statistics.
function emission.count_wait(before)
  local after = job.coalesced_watermark
  if not before or not after or after <= before or not job.max_event_time then return end
  local member = limits.slowest()
  local lag = member and policy.lags_of({member})[1]
  if not lag then return end
  local step = sketch.step()
  local steps = sketch.steps_in(after, step) - sketch.steps_in(before, step)
  local remaining = sketch.decayed(job.wait_weight or 0, steps)
  local weight = math.min(after - before, constants.MAX_WEIGHT - remaining)
  local middle = before + (after - before + config.throttle.slide) / 2
  local share = job.wait_weight and job.wait_weight > 0 and remaining / job.wait_weight or 0
  job.wait_sum = (job.wait_sum or 0) * share + (job.max_event_time - lag - middle) * weight
  job.wait_weight = remaining + weight
end

-- The emitted watermark W, which clients receive

-- Return the query whose open batch has the lowest pinned watermark, and that watermark.
local function lowest_pin()
  if state.changes.is_plain then return nil end
  return values.lowest_of(key.open_pins)
end

-- Raise W to the lower of C and the lowest pinned watermark of the open batches that are not released.
function emission.emit()
  local watermark = job.coalesced_watermark
  local query, pinned = lowest_pin()
  if query and above(watermark, pinned) then watermark = pinned end
  emission.raise_watermark(watermark)
end

-- Raise W and C to a watermark that is safe to emit or was emitted before.
function emission.raise_watermark(watermark)
  emission.advance(watermark)
  if above(watermark, job.watermark) then job.watermark, job.watermark_since = watermark, job.now end
end

-- The written watermark: the minimum of W, the pinned watermarks of all open batches, and the output watermarks that queries
-- tell. key.unwritten has the bounds except those in key.open_pins.

function emission.is_expected(name)
  for _, expected in ipairs(config.expected_queries) do
    if expected == name then return true end
  end
  return false
end

-- Place a query among those that hold the written watermark, after a change of its output watermark, its batch, its run or
-- its substreams. A query that is expected, or has substreams, but has made no call may have unwritten results from before
-- the store lost its state.
function emission.place_unwritten(query)
  assert(not state.changes.is_plain)
  local bound = math.huge
  if query.open and query.released then
    bound = score(number(redis.call('HGET', key.pinned_watermarks(query.name), query.latest)))
  end
  if query.tells_output and not query.retired then bound = math.min(bound, score(query.output)) end
  local is_awaited = not query.run_id and query.name ~= ''
    and (emission.is_expected(query.name) or redis.call('EXISTS', key.last_events(query.name), key.idle(query.name)) > 0)
  if is_awaited then bound = -math.huge end
  if bound < math.huge then
    redis.call('ZADD', key.unwritten, bound, query.name)
  else
    redis.call('ZREM', key.unwritten, query.name)
  end
end

-- The same after a change of the substreams of a query, by its name. Only those of a query without a call matter.
function emission.place_awaited(name)
  if name ~= '' and not queries.get(name).run_id then emission.place_unwritten(queries.get(name)) end
end

-- Return the written watermark that the queries have reached, and the query that holds it below W; nil if it follows W.
local function lowest_written()
  local watermark, query = job.watermark, nil
  if state.changes.is_plain then return watermark, nil end
  for _, name in ipairs({key.open_pins, key.unwritten}) do
    local member, bound = values.lowest_of(name)
    local is_tie = member and query and bound == watermark and values.sorts_before(member, query)
    if member and (above(watermark, bound) or is_tie) then watermark, query = bound, member end
  end
  return watermark, query
end

-- Return the query that holds the written watermark below W; nil if the written watermark follows W.
function emission.written_held_by() return (select(2, lowest_written())) end

-- Raise the written watermark as far as the queries allow. Return the query that holds it below W, if any.
function emission.raise_written()
  local reached, query = lowest_written()
  job.written_watermark = highest(job.written_watermark, reached)
  return query
end

-- Restore a watermark that the store has lost from the latest watermark token of a client; count a token of an older
-- incarnation. The coordinator verifies the token before the command, and replaces an invalid token with one of
-- incarnation 0.
function emission.accept_token(token)
  if not token then return end
  local watermark = number(token.watermark)
  if token.incarnation < job.incarnation then
    redis.call('HINCRBY', key.job, 'tokens_ignored', 1)
    return
  end
  local was_lost = token.incarnation > job.incarnation or values.above(watermark, job.watermark)
  job.incarnation = token.incarnation
  emission.raise_watermark(watermark)
  if was_lost then
    state.changes.was_restored = true
    history.write('watermark_restored', 'watermark', watermark)
  end
end

-- Return the holder of W; nil if the job is complete or W has no holder.
function emission.held_by()
  local query, pinned = lowest_pin()
  local member, watermark = limits.slowest()
  if query and (not member or above(job.coalesced_watermark, pinned)) then
    local of = queries.get(query)
    return {reason = 'open_batch', query = query, batch_id = of.latest, since_ms = job.watermark_since,
      begun_ms = of.begun}
  end
  if job.is_complete then return nil end
  local since = job.coalesced_watermark_since
  local hold, at_most = holds.lowest()
  local furthest = highest(job.max_watermark, limits.arrival_bound())
  if member then furthest = watermark end
  if hold and above(furthest, at_most) then return {reason = 'hold', query = '', hold = hold, since_ms = since} end
  if not member then return nil end
  query = policy.query_of(member)
  local name = policy.name_of(member)
  if name == '' then return {reason = 'missing_query', query = query, since_ms = since} end
  local reason = 'slow'
  local observed, outage = queries.observed_time(query)
  local state_of, last_event = idleness.state_of(query, member, observed)
  if state_of == 'blocked' then
    reason = 'blocked'
  elseif not watermark and not number(redis.call('ZSCORE', key.max_event_times, member)) then
    reason = 'never_reported'
  end
  return {reason = reason, query = query, substream = name, since_ms = since, last_event_ms = last_event + outage}
end

return evaluate, holds, idleness, throttle, emission
