-- @include policies
-- Followers: the substreams whose policies follow the clock, in sorted sets, so that an evaluation costs O(log n):
-- key.constant, key.advancing and key.next_change (see tidegate.store.keyspace). Idle followers are in key.idle_constant
-- and key.idle_advancing, and count towards the max watermark only.
--
-- job.lowest_clock_driven is the lowest own watermark of these substreams. An evaluation raises this value to
-- max(lowest, min(P, cap)), where P is the lowest policy watermark. The result is exact unless a substream has left
-- these sets. If a substream has left and the cap is below P, the evaluation polls each substream, as in
-- tidegate.domain. If job.evaluate_each is set, the next evaluation polls each substream. If there are more than
-- bulk.CHUNK, only a sweep polls each substream, in steps. Until then, job.lowest_clock_driven stays where it is.
local number, score, highest, above, minus = values.number, values.score, values.highest, values.above, values.minus
local job, config = state.job, state.config
local followers = {}

local MAX_CAPPED, MAX_GAPS = 16, 8

-- Return the sorted sets of the active substreams, or those of the idle ones.
local function sets_of(is_idle)
  if is_idle then return key.idle_constant, key.idle_advancing end
  return key.constant, key.advancing
end

-- Return a column: whether a member is idle and follows the clock.
function followers.idle_ones(members) return bulk.zmscore(key.idle_lagged, members) end

-- Write the state of a substream, and add it to its sorted sets.
function followers.place(member, s, rule, is_idle)
  follower.write(member, s)
  local reading = highest(s.own, s.reached)
  local change = follower.next_change(s, rule, reading)
  local constant, moving = sets_of(is_idle)
  redis.call('ZREM', moving, member)
  redis.call('ZADD', constant, score(reading), member)
  if change then
    redis.call('ZADD', key.next_change, score(change), member)
  else
    redis.call('ZREM', key.next_change, member)
  end
end

function followers.remove(members)
  for _, name in ipairs({key.constant, key.advancing, key.next_change, key.idle_constant, key.idle_advancing,
    key.idle_lagged}) do
    bulk.zrem(name, members)
  end
  for _, limit in ipairs(constants.POLICY_LIMITS) do bulk.zrem(key.lagged(limit), members) end
end

-- Call visit(member, s, rule, max_event_time, i) for each member.
local function each(members, visit)
  local event_times, lines = bulk.zmscore(key.max_event_times, members), bulk.hmget(key.clock_driven, members)
  for i, member in ipairs(members) do
    local rule = policy.of(member)
    visit(member, follower.read(lines[i]), rule, number(event_times[i]), i)
  end
end

-- Let active members be idle.
function followers.make_idle(members)
  bulk.zmove(key.constant, key.idle_constant, members)
  bulk.zmove(key.advancing, key.idle_advancing, members)
  for _, limit in ipairs(constants.POLICY_LIMITS) do bulk.zmove(key.lagged(limit), key.idle_lagged, members) end
end

-- Remove members; return their watermarks, which then stay constant.
function followers.freeze(members)
  local watermarks = {}
  each(members, function(member, s, rule, max_event_time)
    follower.materialize(s, rule, max_event_time)
    watermarks[#watermarks + 1] = score(s.own)
    follower.write(member, s)
  end)
  followers.remove(members)
  return watermarks
end

-- Let idle members be active, with their stored state.
function followers.make_active(members)
  local idle = followers.idle_ones(members)
  for _, name in ipairs({key.idle_constant, key.idle_advancing, key.idle_lagged}) do bulk.zrem(name, members) end
  each(members, function(member, s, rule, max_event_time, i)
    if idle[i] then
      follower.materialize(s, rule, max_event_time)
    else  -- frozen
      s.since = job.evaluations
    end
    followers.place(member, s, rule)
    local lagged = max_event_time and minus(max_event_time, rule.initial_lag)
    redis.call('ZADD', key.lagged(rule.limit), score(lagged), member)
    job.lowest_clock_driven = math.min(job.lowest_clock_driven, s.own or -math.huge)
    if above(s.own, job.max_watermark) then job.evaluate_each = 1 end  -- s.own was restored while the member was idle
  end)
end

-- Apply an event time to an active member, or add a new member. packed: the stored state of the member, if any.
function followers.observe(member, packed, event_time, before)
  local rule, s = policy.of(member), nil
  if packed then
    s = follower.read(packed)
    follower.materialize(s, rule, before)
  else
    s = follower.start(rule)
    job.lowest_clock_driven = -math.huge
  end
  local lagged = event_time and follower.observe(s, rule, event_time, highest(event_time, before))
  followers.place(member, s, rule)
  if event_time or not packed then
    redis.call('ZADD', key.lagged(rule.limit), 'GT', score(lagged or nil), member)
  end
end

-- Materialize members, and call visit(member, s, rule, max_event_time, i).
function followers.each_materialized(members, visit)
  each(members, function(member, s, rule, max_event_time, i)
    follower.materialize(s, rule, max_event_time)
    visit(member, s, rule, max_event_time, i)
  end)
end

-- Return the sorted sets that together have each member once, in an order that evaluations do not change.
function followers.sets()
  local sets = {}
  for i, limit in ipairs(constants.POLICY_LIMITS) do sets[i] = key.lagged(limit) end
  sets[#sets + 1] = key.idle_lagged
  return sets
end

-- Poll members. Return the lowest own watermark of the active ones.
function followers.poll(members, cap)
  local lowest, idle = math.huge, followers.idle_ones(members)
  followers.each_materialized(members, function(member, s, rule, max_event_time, i)
    follower.poll(s, rule, max_event_time)
    if s.reached then s.own = highest(s.own, math.min(s.reached, cap)) end
    s.since = job.evaluations + 1
    followers.place(member, s, rule, idle[i])
    if not idle[i] then lowest = math.min(lowest, s.own or -math.huge) end
    job.max_watermark = highest(s.own, job.max_watermark)
  end)
  return lowest
end

-- Record an evaluation that has polled all members.
function followers.record_polls(lowest)
  job.lowest_clock_driven = lowest
  job.capped, job.gaps = nil, nil
  job.evaluate_each = nil
  job.evaluated, job.unattended_at_evaluation = job.observed_now, job.unattended
  job.evaluations = job.evaluations + 1
end

-- Return whether the next evaluation must poll each member.
local function is_each_due() return job.evaluate_each or job.unattended ~= job.unattended_at_evaluation end

local function are_many()
  local active = redis.call('ZCARD', key.constant) + redis.call('ZCARD', key.advancing)
  return active + redis.call('ZCARD', key.idle_lagged) > bulk.CHUNK
end

-- Return whether each member must be polled in steps, before the next evaluation.
function followers.needs_steps()
  return config.has_followers and not job.is_complete and is_each_due() and are_many()
end

-- Move at most CHUNK members that are due to advance or to take a step; return their number.
local function take_changes()
  local due = redis.call('ZRANGE', key.next_change, '-inf', job.observed_now, 'BYSCORE', 'LIMIT', 0, bulk.CHUNK)
  if #due == 0 then return 0 end
  local idle, moved, scored = followers.idle_ones(due), {}, {{}, {}}  -- the members that begin to advance
  each(due, function(member, s, rule, max_event_time, i)
    if follower.has_history(rule) then
      follower.materialize(s, rule, max_event_time)
      follower.poll(s, rule, max_event_time)
      return followers.place(member, s, rule, idle[i])
    end
    local _, distance = follower.next_change(s, rule, highest(s.own, s.reached))
    if math.abs(distance) > values.HIGHEST then  -- no exact score: constant until the next evaluation
      redis.call('ZADD', (sets_of(idle[i])), score(highest(s.own, follower.now(s, rule))), member)
      redis.call('ZADD', key.next_change, score(job.observed_now + 1), member)
    else
      local of_kind = scored[idle[i] and 2 or 1]
      moved[#moved + 1], of_kind[#of_kind + 1], of_kind[#of_kind + 2] = member, distance, member
    end
  end)
  for _, name in ipairs({key.next_change, key.constant, key.idle_constant}) do bulk.zrem(name, moved) end
  bulk.zadd(key.advancing, nil, scored[1])
  bulk.zadd(key.idle_advancing, nil, scored[2])
  return #due
end

-- Return the lowest and the highest watermark of active or idle members, infinite if there are none. A missing watermark
-- counts as -inf.
local function extremes_of(is_idle)
  local lowest, top, constant, moving = math.huge, -math.huge, sets_of(is_idle)
  for name, offset in pairs({[constant] = 0, [moving] = job.observed_now}) do
    local member, first = values.lowest_of(name)
    if member then
      local _, last = values.highest_of(name)
      lowest = math.min(lowest, score(first) + offset, values.HIGHEST)
      top = math.max(top, math.min(score(last) + offset, values.HIGHEST))
    end
  end
  return lowest, top
end

-- Return the lowest current watermark of the active members, and the highest one of all members.
local function extremes()
  local lowest, top = extremes_of(false)
  if redis.call('EXISTS', key.idle_lagged) == 0 then return lowest, top end
  local _, top_of_idle = extremes_of(true)
  return lowest, math.max(top, top_of_idle)
end

local function note_gap()
  local shortest = follower.shortest_history()
  if not shortest or not job.evaluated or job.observed_now - job.evaluated <= shortest then return end
  job.gaps = job.gaps or {}
  table.insert(job.gaps, {from = job.evaluated, to = job.observed_now})
  if #job.gaps >= MAX_GAPS then job.evaluate_each = 1 end
end

local function poll_each(cap)
  local lowest = math.huge
  for _, name in ipairs(followers.sets()) do
    lowest = math.min(lowest, followers.poll(redis.call('ZRANGE', name, 0, -1), cap))
  end
  followers.record_polls(lowest)
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
  if follower.push_capped(cap) >= MAX_CAPPED then job.evaluate_each = 1 end
  job.evaluated, job.unattended_at_evaluation = job.observed_now, job.unattended
  job.evaluations = job.evaluations + 1
  return is_unfinished
end

-- Evaluate the members. cap: bound of their watermarks (infinite: none). has_left: a member became idle in this
-- command. Return the lowest own watermark (infinite if there are no members), whether another evaluation is due, and
-- whether the members must be polled in steps before.
function followers.evaluate(cap, has_left)
  local is_unfinished = false
  if not config.has_followers or redis.call('EXISTS', key.clock_driven) == 0 then
    followers.record_polls(math.huge)
  elseif is_each_due() then
    if are_many() then return job.lowest_clock_driven, true, true end
    poll_each(cap)
  else
    is_unfinished = evaluate_sets(cap, has_left)
  end
  if cap < math.huge and config.has_followers then
    local _, top = extremes()
    is_unfinished = is_unfinished or top > cap
  end
  return job.lowest_clock_driven, is_unfinished
end

return followers
