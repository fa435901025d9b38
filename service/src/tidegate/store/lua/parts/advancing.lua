-- @include parts/clock_driven
-- The active substreams whose policies follow the clock, in sorted sets, so that an evaluation costs O(log n):
--
--   key.constant    member -> watermark, while it is constant
--   key.advancing   member -> watermark - observed time, while it advances with the clock
--   key.next_change member -> observed time at which it starts to advance or takes its next step
--
-- job.lowest_clock_driven is the lowest own watermark of these substreams. An evaluation raises this value to
-- max(lowest, min(P, cap)), where P is the lowest policy watermark. The result is exact unless a substream has left
-- these sets. If a substream has left and the cap is below P, the evaluation polls each substream, as in
-- tidegate.domain. If job.evaluate_each is set, the next evaluation polls each substream. If there are more than
-- bulk.CHUNK, only a sweep polls each substream, in steps. Until then, job.lowest_clock_driven stays where it is.
local number, score, highest, above = values.number, values.score, values.highest, values.above
local job, config = state.job, state.config
local advancing = {}
local MAX_CAPPED, MAX_GAPS = 16, 8

-- Write the state of an active substream, and add it to its sorted sets.
function advancing.place(member, s, rule)
  clock_driven.write(member, s)
  local reading = highest(s.own, s.reached)
  local change = clock_driven.next_change(s, rule, reading)
  redis.call('ZREM', key.advancing, member)
  redis.call('ZADD', key.constant, score(reading), member)
  if change then
    redis.call('ZADD', key.next_change, score(change), member)
  else
    redis.call('ZREM', key.next_change, member)
  end
end

function advancing.remove(members)
  for _, name in ipairs({key.constant, key.advancing, key.next_change}) do bulk.zrem(name, members) end
  for _, limit in ipairs(constants.POLICY_LIMITS) do bulk.zrem(key.lagged(limit), members) end
end

-- Call visit(member, s, rule, max_event_time) for each member.
local function each(members, visit)
  local event_times, lines = bulk.zmscore(key.max_event_times, members), bulk.hmget(key.clock_driven, members)
  for i, member in ipairs(members) do
    local rule = policy.of(member)
    visit(member, clock_driven.read(lines[i]), rule, number(event_times[i]))
  end
end

-- Remove active members; return their watermarks, which then stay constant.
function advancing.freeze(members)
  local watermarks = {}
  each(members, function(member, s, rule, max_event_time)
    clock_driven.materialize(s, rule, max_event_time)
    watermarks[#watermarks + 1] = score(s.own)
    clock_driven.write(member, s)
  end)
  advancing.remove(members)
  return watermarks
end

-- Add frozen members again, with their stored state.
function advancing.thaw(members)
  each(members, function(member, s, rule, max_event_time)
    s.since = job.evaluations
    advancing.place(member, s, rule)
    local lagged = max_event_time and values.minus(max_event_time, rule.initial_lag)
    redis.call('ZADD', key.lagged(rule.limit), score(lagged), member)
    job.lowest_clock_driven = math.min(job.lowest_clock_driven, s.own or -math.huge)
    if above(s.own, job.max_watermark) then job.evaluate_each = 1 end  -- s.own was restored while the member was idle
  end)
end

-- Apply an event time to an active member, or add a new member. packed: the stored state of the member, if any.
function advancing.observe(member, packed, event_time, before)
  local rule, s = policy.of(member), nil
  if packed then
    s = clock_driven.read(packed)
    clock_driven.materialize(s, rule, before)
  else
    s = clock_driven.start(rule)
    job.lowest_clock_driven = -math.huge
  end
  local lagged = event_time and clock_driven.observe(s, rule, event_time, highest(event_time, before))
  advancing.place(member, s, rule)
  if event_time or not packed then
    redis.call('ZADD', key.lagged(rule.limit), 'GT', score(lagged or nil), member)
  end
end

-- Materialize active members, and call visit(member, s, rule, max_event_time).
function advancing.each_materialized(members, visit)
  each(members, function(member, s, rule, max_event_time)
    clock_driven.materialize(s, rule, max_event_time)
    visit(member, s, rule, max_event_time)
  end)
end

-- Return the sorted sets that together have each active member once, in an order that evaluations do not change.
function advancing.sets()
  local sets = {}
  for i, limit in ipairs(constants.POLICY_LIMITS) do sets[i] = key.lagged(limit) end
  return sets
end

-- Poll active members. Return their lowest own watermark.
function advancing.poll(members, cap)
  local lowest = math.huge
  advancing.each_materialized(members, function(member, s, rule, max_event_time)
    clock_driven.poll(s, rule, max_event_time)
    if s.reached then s.own = highest(s.own, math.min(s.reached, cap)) end
    s.since = job.evaluations + 1
    advancing.place(member, s, rule)
    lowest = math.min(lowest, s.own or -math.huge)
    job.max_watermark = highest(s.own, job.max_watermark)
  end)
  return lowest
end

-- Record an evaluation that has polled all active members.
function advancing.record_polls(lowest)
  job.lowest_clock_driven = lowest
  clock_driven.clear_capped()
  job.evaluate_each = nil
  job.evaluated, job.unattended_at_evaluation = job.observed_now, job.unattended
  job.evaluations = job.evaluations + 1
end

-- Return whether the next evaluation must poll each active member.
local function is_each_due()
  return job.evaluate_each or job.unattended ~= job.unattended_at_evaluation
end

local function are_many()
  return redis.call('ZCARD', key.constant) + redis.call('ZCARD', key.advancing) > bulk.CHUNK
end

-- Return whether each active member must be polled in steps, before the next evaluation.
function advancing.needs_steps()
  return config.has_clock_driven and not job.is_complete and is_each_due() and are_many()
end

-- Move at most CHUNK members that are due to advance or to take a step; return their number.
local function take_changes()
  local due = redis.call('ZRANGE', key.next_change, '-inf', job.observed_now, 'BYSCORE', 'LIMIT', 0, bulk.CHUNK)
  if #due == 0 then return 0 end
  local moved, scored = {}, {}  -- the members that begin to advance
  each(due, function(member, s, rule, max_event_time)
    if rule.max_delay_ms then
      clock_driven.materialize(s, rule, max_event_time)
      clock_driven.poll(s, rule, max_event_time)
      return advancing.place(member, s, rule)
    end
    local _, distance = clock_driven.next_change(s, rule, highest(s.own, s.reached))
    if math.abs(distance) > values.HIGHEST then  -- no exact score: constant until the next evaluation
      redis.call('ZADD', key.constant, score(highest(s.own, clock_driven.now(s, rule))), member)
      redis.call('ZADD', key.next_change, score(job.observed_now + 1), member)
    else
      local at = #moved + 1
      moved[at], scored[2 * at - 1], scored[2 * at] = member, distance, member
    end
  end)
  bulk.zrem(key.next_change, moved)
  bulk.zrem(key.constant, moved)
  bulk.zadd(key.advancing, nil, scored)
  return #due
end

-- Return the lowest and the highest current watermark, infinite if there are no members. A missing watermark counts as
-- -inf.
local function extremes()
  local lowest, top = math.huge, -math.huge
  local member, reading = values.lowest_of(key.constant)
  if member then
    lowest = reading or -math.huge
    local _, last = values.highest_of(key.constant)
    top = last or -math.huge
  end
  member, reading = values.lowest_of(key.advancing)
  if member then
    lowest = math.min(lowest, reading + job.observed_now, values.HIGHEST)
    local _, last = values.highest_of(key.advancing)
    top = math.max(top, math.min(last + job.observed_now, values.HIGHEST))
  end
  return lowest, top
end

local function note_gap()
  local shortest = clock_driven.shortest_history()
  if not shortest or not job.evaluated or job.observed_now - job.evaluated <= shortest then return end
  job.gaps = clock_driven.gaps()
  table.insert(job.gaps, {from = job.evaluated, to = job.observed_now})
  if #job.gaps >= MAX_GAPS then job.evaluate_each = 1 end
end

local function poll_each(cap)
  local lowest = math.huge
  for _, name in ipairs(advancing.sets()) do
    lowest = math.min(lowest, advancing.poll(redis.call('ZRANGE', name, 0, -1), cap))
  end
  advancing.record_polls(lowest)
end

-- Evaluate without polling each member; return whether more changes are due.
local function evaluate_sets(cap, has_left)
  note_gap()
  local is_unfinished = take_changes() == bulk.CHUNK
  local lowest, top = extremes()
  if has_left and cap < lowest and lowest < math.huge then
    if not are_many() then
      poll_each(cap)
      return is_unfinished
    end
    job.evaluate_each, is_unfinished = 1, true
  else
    job.lowest_clock_driven = lowest == math.huge and lowest or math.max(job.lowest_clock_driven, math.min(lowest, cap))
  end
  if top > -math.huge then job.max_watermark = highest(math.min(top, cap), job.max_watermark) end
  if clock_driven.push_capped(cap) >= MAX_CAPPED then job.evaluate_each = 1 end
  job.evaluated, job.unattended_at_evaluation = job.observed_now, job.unattended
  job.evaluations = job.evaluations + 1
  return is_unfinished
end

-- Evaluate the members. cap: limit on their watermarks (infinite: no limit). has_left: a member became idle in this
-- command. Return the lowest own watermark (infinite if there are no members), and whether another evaluation is due.
function advancing.evaluate(cap, has_left)
  local is_unfinished = false
  if not config.has_clock_driven or redis.call('EXISTS', key.clock_driven) == 0 then
    advancing.record_polls(math.huge)
  elseif is_each_due() then
    if are_many() then return job.lowest_clock_driven, true end
    poll_each(cap)
  else
    is_unfinished = evaluate_sets(cap, has_left)
  end
  if cap < math.huge and job.lowest_clock_driven < math.huge then
    local _, top = extremes()
    is_unfinished = is_unfinished or top > cap
  end
  return job.lowest_clock_driven, is_unfinished
end

return advancing
