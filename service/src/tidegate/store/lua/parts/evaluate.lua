-- @include parts/idleness
-- @include parts/membership
-- @include parts/merge
-- @include parts/delays
-- The evaluation: decide which substreams count, merge their watermarks, throttle, emit. See tidegate.domain.evaluate.
-- To bound the time of a function call, an evaluation applies a limited number of pending changes. The others are due
-- immediately; until then, the substreams that they concern hold C.
local text, above = values.text, values.above
local job, config = state.job, state.config
local evaluate = {}

-- Stop open batches from holding W after max_batch_hold_ms.
local function release_overdue()
  if not config.max_batch_hold_ms then return end
  local last = job.observed_now - config.max_batch_hold_ms
  for _, query in ipairs(redis.call('ZRANGE', key.open_batches, '-inf', last, 'BYSCORE')) do
    redis.call('ZADD', key.open_batches, '+inf', query)
    redis.call('ZREM', key.open_pins, query)
    journal.count_limit('max_batch_hold_ms')
    queries.get(query).released = true
    journal.write('batch_released', 'query', query, 'batch_id', queries.get(query).latest)
  end
end

-- Record that a limit let C pass members of these sets.
local function record_limit(limit, sets)
  local count, names = 0, {}
  for _, set in ipairs(sets) do
    count = count + redis.call('ZCOUNT', set[1], '-inf', '(' .. text(job.coalesced_watermark - set[2]))
  end
  if count == 0 then return end
  local rows = emission.slowest_first(sets, constants.NAMES_KEPT)
  for i = 1, math.min(count, constants.NAMES_KEPT) do names[i] = rows[i].member end
  journal.count_limit(limit)
  local passed = state.changes.passed
  passed[#passed + 1] = {limit = limit, count = count, substreams = names}
end

local function record_limits(is_retained)
  if is_retained then record_limit('max_retention_ms', emission.active_sets()) end
  if not config.has_clock_driven then return end
  for _, limit in ipairs(constants.POLICY_LIMITS) do record_limit(limit, {{key.lagged(limit), 0}}) end
end

local function record_all_idle(was_all_idle)
  if job.all_idle == was_all_idle then return end
  if was_all_idle then
    journal.write('not_all_idle')
  elseif membership.count() == 0
    or redis.call('ZCARD', key.frozen) + redis.call('ZCARD', key.idle_lagged) > redis.call('ZCARD', key.done) then
    journal.write('all_idle')
  end
end

-- Let the limits act that exclude substreams, batches and holds. Return whether a substream that follows the clock
-- became idle.
function evaluate.exclude()
  holds.expire()
  local has_left = idleness.time_out_queries()
  has_left = idleness.expire_remaining() or has_left
  has_left = idleness.expire('', job.observed_now) or has_left
  target_completeness.raise()
  release_overdue()
  return has_left
end

local function run(cap, is_sweep, has_left)
  if job.is_complete then return end
  has_left = evaluate.exclude() or has_left
  local before, was_all_idle = job.coalesced_watermark, job.all_idle
  local is_retained = merge.merge(cap, is_sweep, has_left)
  if above(job.coalesced_watermark, before) then record_limits(is_retained) end
  record_all_idle(was_all_idle)
  emission.emit()
  delays.count_wait(before)
end

-- Evaluate the job after a change. has_left: a substream that follows the clock became idle in this command.
function evaluate.evaluate(has_left)
  run(nil, false, has_left)
end

-- Evaluate the job after a report without a batch. cap: the lowest event time of the report.
function evaluate.after_report(cap)
  run(cap, false)
end

-- Evaluate the job because time has passed. Retention acts in sweeps only.
function evaluate.sweep()
  run(nil, true)
end

-- Evaluate the job before a read. An empty job has nothing to evaluate, and a read of it records nothing.
function evaluate.sweep_for_read()
  if job.all_idle or membership.count() > 0 then run(nil, true) end
end

return evaluate
