-- @include parts/policy
-- @include parts/history
-- The state of a substream whose policy follows the clock. An evaluation must not visit every such substream, so the
-- watermarks are computed when needed. The watermark p of a policy, polled at time t, is
-- reached + max(0, t - start):
--
--   lull         start is the deadline                     constant until start, then advancing with the clock
--   wall clock   start is reached + wall_clock_lag_ms      as for lull
--   delay        a step function                           constant until its next step
--
-- The watermark of the substream itself is  max(own, min(p(t), cap))  over the evaluations (t, cap) since own was last
-- materialized. cap is the lowest event time of a report, or infinite. job.capped lists the evaluations that no later
-- evaluation supersedes; only these matter.
--
-- The fields of a state s are own, since (the number of the evaluation at which own was materialized), reached, and
-- deadline. Under `delay`, polled and history replace deadline.
local highest, minus = values.highest, values.minus
local job, config = state.job, state.config
local clock_driven = {}

-- For each policy, by the name of its limit, a table of functions:
--
--   at           return the watermark that a poll at a time would give
--   poll         poll the policy
--   observe      apply an event time, which max_event_time already includes
--   catch_up     poll the policy as of the last evaluation, as if every evaluation had polled it
--   next_change  return the time at which the watermark passes `reading`, its current value; if it then advances with
--                the clock, also return its distance from the clock
local lull, wall_clock, delay = {}, {}, {}
local kinds = {max_lull_ms = lull, wall_clock_lag_ms = wall_clock, max_delay_ms = delay}

function lull.at(s, _, time)
  if s.reached and s.deadline and time > s.deadline then
    return math.min(s.reached + (time - s.deadline), values.HIGHEST)
  end
  return s.reached
end

function lull.poll(s, rule, time)
  s.reached = lull.at(s, rule, time)
  s.deadline = math.max(s.deadline or time + rule.max_lull_ms, time)
end

function lull.observe(s, rule, lagged)
  s.reached, s.deadline = highest(s.reached, lagged), job.observed_now + rule.max_lull_ms
end

function lull.catch_up(s, rule)
  s.reached = lull.at(s, rule, job.evaluated)
  if s.deadline then s.deadline = math.max(s.deadline, job.evaluated) end
end

function lull.next_change(s, _, reading)
  if s.reached == nil or s.deadline == nil then return nil end
  local start = s.deadline + (reading - s.reached)
  return start, reading - start
end

function wall_clock.at(s, rule, time, unattended)
  return highest(s.reached, minus(time + unattended, rule.wall_clock_lag_ms))
end

function wall_clock.poll(s, rule, time)
  s.reached = wall_clock.at(s, rule, time, job.unattended)
end

function wall_clock.observe(s, rule, lagged)
  s.reached = highest(wall_clock.at(s, rule, job.observed_now, job.unattended), lagged)
end

function wall_clock.catch_up(s, rule)
  s.reached = wall_clock.at(s, rule, job.evaluated, job.unattended_at_evaluation)
end

function wall_clock.next_change(_, rule, reading)
  local distance = job.unattended - rule.wall_clock_lag_ms
  if reading == nil then return -math.huge, distance end
  return reading - distance, distance
end

function delay.at(s)
  return s.reached
end

function delay.poll(s, _, time, max_event_time)
  s.reached, s.polled = highest(s.reached, history.sample(s.history, time, max_event_time)), time
end

function delay.observe(s, rule, lagged, max_event_time)
  s.reached = highest(s.reached, lagged)
  delay.poll(s, rule, job.observed_now, max_event_time)
end

-- Return the gaps between evaluations after which a history may restart its slots.
function clock_driven.gaps()
  return job.gaps or {}
end

function delay.catch_up(s, _, max_event_time)
  local h, time = s.history, job.evaluated
  if h.boundary then
    for _, gap in ipairs(clock_driven.gaps()) do
      if s.polled and gap.from >= s.polled and gap.to <= time then
        history.roll(h, gap.from)
        history.sample(h, gap.to, max_event_time)
      end
    end
    history.roll(h, time)
    s.reached = highest(s.reached, h.cells[1] or nil)
  end
  s.polled = time
end

function delay.next_change(s, _, reading)
  if not s.history.boundary then return -math.huge end
  return history.next_change(s.history, function(cell) return values.above(cell, reading) end)
end

function clock_driven.start(rule, own)
  local s = {own = own, since = job.evaluations or 0}
  if rule.max_delay_ms then s.history = history.start(rule.max_delay_ms) end
  return s
end

-- Return the state of a member from its stored text.
function clock_driven.read(packed)
  return cmsgpack.unpack(packed)
end

function clock_driven.write(member, s)
  redis.call('HSET', key.clock_driven, member, cmsgpack.pack(s))
end

-- Return the capped evaluations, oldest first: sequence, time, cap.
function clock_driven.capped()
  return job.capped or {}
end

-- Record the current evaluation, which supersedes earlier evaluations with the same or a lower cap.
function clock_driven.push_capped(cap)
  local evaluations = clock_driven.capped()
  while #evaluations > 0 and evaluations[#evaluations].cap <= cap do evaluations[#evaluations] = nil end
  evaluations[#evaluations + 1] = {sequence = job.evaluations + 1, time = job.observed_now, cap = cap}
  job.capped = evaluations
  return #evaluations
end

function clock_driven.clear_capped()
  job.capped, job.gaps = nil, nil
end

-- Return the watermark that a poll of the policy would give now.
function clock_driven.now(s, rule)
  return kinds[rule.limit].at(s, rule, job.observed_now, job.unattended)
end

-- Return the watermark of the substream after the last evaluation.
function clock_driven.own_watermark(s, rule)
  local watermark = s.own
  for _, one in ipairs(clock_driven.capped()) do
    if one.sequence > s.since then
      local polled = kinds[rule.limit].at(s, rule, one.time, job.unattended_at_evaluation)
      if polled then watermark = highest(watermark, math.min(polled, one.cap)) end
    end
  end
  return watermark
end

-- Materialize own, and poll the policy as of the last evaluation.
function clock_driven.materialize(s, rule, max_event_time)
  s.own = clock_driven.own_watermark(s, rule)
  if job.evaluations > s.since then kinds[rule.limit].catch_up(s, rule, max_event_time) end
  s.since = job.evaluations
end

function clock_driven.poll(s, rule, max_event_time)
  kinds[rule.limit].poll(s, rule, job.observed_now, max_event_time)
end

-- Apply an event time; return the watermark by the lag alone.
function clock_driven.observe(s, rule, event_time, max_event_time)
  local lagged = minus(event_time, rule.initial_lag)
  kinds[rule.limit].observe(s, rule, lagged, max_event_time)
  return lagged
end

function clock_driven.next_change(s, rule, reading)
  return kinds[rule.limit].next_change(s, rule, reading)
end

-- Return the length of the shortest history of the job's policies, in milliseconds; nil if no policy has a history.
function clock_driven.shortest_history()
  local shortest
  for _, rule in ipairs(config.policies) do
    if rule.max_delay_ms then shortest = math.min(shortest or rule.max_delay_ms, rule.max_delay_ms) end
  end
  return shortest
end

return clock_driven
