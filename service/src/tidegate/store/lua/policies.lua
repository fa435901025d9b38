-- @include job
-- @include completeness
-- Policies: the rules that derive a substream's watermark from its event times, as in tidegate.domain.policies.
local text, highest, minus = values.text, values.highest, values.minus
local job, config = state.job, state.config
local policy, timestamp_history, follower, target_completeness = {}, {}, {}, {}

-- The policy of a substream. A member is '<query>/<substream>'; query names have no slash.
local PLACEHOLDER = {type = 'reported', accepts_watermarks = true, follows_clock = false}
local SLASH = 47
-- The policies of the last names, by the list of policies and by name. Without them, each report would match each of its
-- names with each pattern. Their number is bounded, because maxmemory does not count this table.
local remembered, size, MAX_REMEMBERED = {}, 0, 20000

function policy.query_of(member) return string.sub(member, 1, string.find(member, '/', 1, true) - 1) end
function policy.name_of(member) return string.sub(member, string.find(member, '/', 1, true) + 1) end

-- Return whether a name matches a pattern. pieces: the texts between the * of the pattern, which are searched once, from
-- left to right. The first place of each piece leaves the most room for the next one, so no other place is tried.
local function matches(pieces, name)
  local count = #pieces
  local first, last = pieces[1], pieces[count]
  if count == 1 then return name == first end
  if last ~= '' and string.sub(name, -#last) ~= last then return false end
  if first ~= '' and string.sub(name, 1, #first) ~= first then return false end
  local at = #first + 1
  for i = 2, count - 1 do
    local from, to = string.find(name, pieces[i], at, true)
    if not from then return false end
    at = math.max(to + 1, from)  -- an empty piece ends before it begins
  end
  return #name - at + 1 >= #last
end

local function first_match(policies, name)
  for i = 2, #policies do
    if matches(policies[i].pieces, name) then return policies[i] end
  end
  return policies[1]
end

-- Return the policy of a member: the first override in `policies` that matches, or else the policy of the job.
function policy.among(policies, member)
  if #policies == 1 and string.byte(member, -1) ~= SLASH then return policies[1] end
  local name = policy.name_of(member)
  if name == '' then return PLACEHOLDER end
  local of_name = remembered[policies]
  if of_name and of_name[name] then return of_name[name] end
  if size >= MAX_REMEMBERED then remembered, size, of_name = {}, 0, nil end
  if not of_name then
    of_name = {}
    remembered[policies] = of_name
  end
  of_name[name], size = first_match(policies, name), size + 1
  return of_name[name]
end

function policy.of(member) return policy.among(config.policies, member) end

-- Return the members whose policies do not follow the clock, and the other members, both in order.
function policy.by_kind(members)
  if not config.has_followers then return members, {} end
  local flat, follower_members = {}, {}
  for _, member in ipairs(members) do
    local kind = policy.of(member).follows_clock and follower_members or flat
    kind[#kind + 1] = member
  end
  return flat, follower_members
end

local PARAMETERS = {'type', 'initial_lag', 'max_delay_ms', 'max_lull_ms', 'wall_clock_lag_ms', 'late_share', 'floor_ms',
  'ceiling_ms', 'enough'}

-- Return whether two policies differ.
function policy.differs(a, b)
  for _, name in ipairs(PARAMETERS) do
    if a[name] ~= b[name] then return true end
  end
  return false
end

-- The lag of a policy

function policy.is_target(rule) return rule.type == 'target_completeness' end

-- Return a learned lag, limited to the range from floor to ceiling of its policy.
function policy.within(rule, lag)
  return math.max(rule.ceiling_ms and math.min(lag, rule.ceiling_ms) or lag, rule.floor_ms)
end

-- Return the lag in force of each member; false if the policy has no lag.
function policy.lags_of(members)
  local lags, targets, names = {}, {}, {}
  for i, member in ipairs(members) do
    local rule = policy.of(member)
    lags[i] = rule.initial_lag or false
    if policy.is_target(rule) then targets[#targets + 1], names[#names + 1] = i, member end
  end
  for at, line in pairs(#names > 0 and bulk.hmget(key.learned_lags, names) or {}) do
    local learned = line and tonumber(string.match(line, '^%d+'))
    if learned then lags[targets[at]] = policy.within(policy.of(names[at]), learned) end
  end
  return lags
end

-- Return the lag of a policy under which a watermark is max event time - lag; nil for other policies.
function policy.constant_lag(rule) return rule.type == 'limiting_lag' and rule.initial_lag or nil end

-- Return the lag of a member whose watermark is always max event time - lag; nil for other policies.
function policy.flat_lag(rule, member)
  if policy.is_target(rule) then return policy.lags_of({member})[1] end
  return policy.constant_lag(rule)
end

-- The history of one value, with the slots of TimestampHistory in the model. cells[1] is the oldest cell; an empty cell
-- is false. boundary is in sixteenths of a millisecond, length in milliseconds.
local CELLS = 17

function timestamp_history.start(length)
  local h = {length = length, cells = {}}
  for i = 1, CELLS do h.cells[i] = false end
  return h
end

-- Return a history as text, for a reply: length, boundary and cells, with commas between them.
function timestamp_history.line(h)
  local parts = {text(h.length), text(h.boundary)}
  for i = 1, CELLS do parts[#parts + 1] = h.cells[i] and text(h.cells[i]) or '' end
  return table.concat(parts, ',')
end

-- Close the slots that have ended by a time; return their number.
function timestamp_history.roll(h, time)
  local now = time * 16
  if now < h.boundary then return 0 end
  local closed = math.floor((now - h.boundary) / h.length) + 1
  local shift, newest = math.min(closed, CELLS), h.cells[CELLS]
  for i = 1, CELLS do
    local cell = h.cells[i + shift]
    if cell == nil then cell = newest end
    h.cells[i] = cell
  end
  h.boundary = h.boundary + closed * h.length
  return closed
end

-- Record the current value and return the value of `length` ago.
function timestamp_history.sample(h, time, value)
  if not h.boundary or timestamp_history.roll(h, time) >= CELLS then h.boundary = time * 16 + h.length end
  h.cells[CELLS] = value or false
  return h.cells[1] or nil
end

-- Return the next time at which the returned value changes to one that satisfies `matters`, without new samples; nil if
-- no value of the history satisfies it.
function timestamp_history.next_change(h, matters)
  if not h.boundary then return nil end
  for shifts = 1, CELLS - 1 do
    local cell = h.cells[shifts + 1]
    if cell and matters(cell) then return math.ceil((h.boundary + (shifts - 1) * h.length) / 16) end
  end
end

-- The state of a follower: a substream whose policy follows the clock. An evaluation must not visit every follower, so the
-- watermarks are computed when needed. The watermark p of a policy, polled at time t, is
-- reached + max(0, t - start):
--
--   limiting_lag_and_lull   start is the deadline                     constant until start, then advancing with the clock
--   limiting_timestamp_and_wall_clock_lag
--                           start is reached + wall_clock_lag_ms      as for a lull
--   limiting_lag_and_delay  a step function                           constant until its next step
--
-- The watermark of the substream itself is  max(own, min(p(t), cap))  over the evaluations (t, cap) since own was last
-- materialized. cap is the lowest event time of a report, or infinite. job.capped lists the evaluations that no later
-- evaluation supersedes, oldest first (sequence, time, cap); only these matter. job.gaps lists the gaps between evaluations
-- after which a history may restart its slots.
--
-- The fields of a state s are own, since (the number of the evaluation at which own was materialized), reached, and
-- deadline. With a delay, polled and history replace deadline.
--
-- Each policy is a table of functions:
--
--   at           return the watermark that a poll at a time would give
--   poll         poll the policy
--   observe      apply an event time, which max_event_time already includes
--   catch_up     poll the policy as of the last evaluation, as if every evaluation had polled it
--   next_change  return the time at which the watermark passes `reading`, its current value; if it then advances with
--                the clock, also return its distance from the clock
local lull, wall_clock, delay = {}, {}, {}
local of_type = {limiting_lag_and_lull = lull, limiting_timestamp_and_wall_clock_lag = wall_clock,
  limiting_lag_and_delay = delay}

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

function wall_clock.poll(s, rule, time) s.reached = wall_clock.at(s, rule, time, job.unattended) end

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

function delay.at(s) return s.reached end

function delay.poll(s, _, time, max_event_time)
  s.reached, s.polled = highest(s.reached, timestamp_history.sample(s.history, time, max_event_time)), time
end

function delay.observe(s, rule, lagged, max_event_time)
  s.reached = highest(s.reached, lagged)
  delay.poll(s, rule, job.observed_now, max_event_time)
end

function delay.catch_up(s, _, max_event_time)
  local h, time = s.history, job.evaluated
  if h.boundary then
    for _, gap in ipairs(job.gaps or {}) do
      if s.polled and gap.from >= s.polled and gap.to <= time then
        timestamp_history.roll(h, gap.from)
        timestamp_history.sample(h, gap.to, max_event_time)
      end
    end
    timestamp_history.roll(h, time)
    s.reached = highest(s.reached, h.cells[1] or nil)
  end
  s.polled = time
end

function delay.next_change(s, _, reading)
  if not s.history.boundary then return -math.huge end
  return timestamp_history.next_change(s.history, function(cell) return values.above(cell, reading) end)
end

-- Return whether the watermark of a policy moves in steps, which a history of max event times determines.
function follower.has_history(rule) return of_type[rule.type] == delay end

function follower.start(rule, own)
  local s = {own = own, since = job.evaluations or 0}
  if follower.has_history(rule) then s.history = timestamp_history.start(rule.max_delay_ms) end
  return s
end

function follower.read(packed) return cmsgpack.unpack(packed) end
function follower.write(member, s) redis.call('HSET', key.clock_driven, member, cmsgpack.pack(s)) end

-- Record the current evaluation, which supersedes earlier evaluations with the same or a lower cap.
function follower.push_capped(cap)
  local evaluations = job.capped or {}
  while #evaluations > 0 and evaluations[#evaluations].cap <= cap do evaluations[#evaluations] = nil end
  evaluations[#evaluations + 1] = {sequence = job.evaluations + 1, time = job.observed_now, cap = cap}
  job.capped = evaluations
  return #evaluations
end

-- Return the watermark that a poll of the policy would give now.
function follower.now(s, rule) return of_type[rule.type].at(s, rule, job.observed_now, job.unattended) end

-- Return the watermark of the substream after the last evaluation.
function follower.own_watermark(s, rule)
  local watermark = s.own
  for _, one in ipairs(job.capped or {}) do
    if one.sequence > s.since then
      local polled = of_type[rule.type].at(s, rule, one.time, job.unattended_at_evaluation)
      if polled then watermark = highest(watermark, math.min(polled, one.cap)) end
    end
  end
  return watermark
end

-- Materialize own, and poll the policy as of the last evaluation.
function follower.materialize(s, rule, max_event_time)
  s.own = follower.own_watermark(s, rule)
  if job.evaluations > s.since then of_type[rule.type].catch_up(s, rule, max_event_time) end
  s.since = job.evaluations
end

function follower.poll(s, rule, max_event_time)
  of_type[rule.type].poll(s, rule, job.observed_now, max_event_time)
end

-- Apply an event time; return the watermark by the lag alone.
function follower.observe(s, rule, event_time, max_event_time)
  local lagged = minus(event_time, rule.initial_lag)
  of_type[rule.type].observe(s, rule, lagged, max_event_time)
  return lagged
end

function follower.next_change(s, rule, reading) return of_type[rule.type].next_change(s, rule, reading) end

-- Return the length of the shortest history of the job's policies, in milliseconds; nil if no policy has one.
function follower.shortest_history()
  local shortest
  for _, rule in ipairs(config.policies) do
    if follower.has_history(rule) then shortest = math.min(shortest or rule.max_delay_ms, rule.max_delay_ms) end
  end
  return shortest
end

-- target_completeness: a lag learned from delays, with the same steps as in the model
local ROW, ROWS_BEYOND = constants.ROW, constants.ROWS_BEYOND

-- Return the learned state of a member, or nil. relearning: the learned lag was discarded. rows: the number of recent
-- rows. late: the number of late rows among them. highest: the highest bucket of the late rows.
local function learned_of(member)
  local line = redis.call('HGET', key.learned_lags, member)
  if not line then return nil end
  local numbers = cjson.decode('[' .. line .. ']')
  return {lag = numbers[1], relearning = numbers[2] == 1, rows = numbers[3], late = numbers[4], highest = numbers[5]}
end

local function keep(member, learned)
  local numbers = {text(learned.lag), learned.relearning and '1' or '0', text(learned.rows), text(learned.late),
    text(learned.highest)}
  redis.call('HSET', key.learned_lags, member, table.concat(numbers, ','))
end

local function lag_of(rule, s)
  local beyond = sketch.weight(s) * rule.late_share / ROW
  beyond = math.floor(math.max(beyond - constants.MARGIN * math.sqrt(beyond), 0) * ROW)
  return policy.within(rule, sketch.lag_for(s, beyond))
end

function target_completeness.wanted_lag(rule, own, pool)
  for _, s in ipairs({own, pool}) do
    if sketch.weight(s) >= rule.enough * ROW then return lag_of(rule, s) end
  end
end

local function is_surprised(rule, learned, lag, rows)
  for bucket, count in pairs(rows) do
    learned.rows = learned.rows + count
    if count > 0 and math.floor(sketch.edges()[bucket]) > lag then
      learned.late, learned.highest = learned.late + count, math.max(learned.highest, bucket)
    end
  end
  local expected = learned.rows * rule.late_share
  local may_widen = not rule.ceiling_ms or lag < rule.ceiling_ms
  local most = expected + constants.SURPRISE * math.sqrt(expected)
  if may_widen and learned.late >= ROWS_BEYOND and learned.late > most then return true end
  if learned.rows > 2 * rule.window then
    learned.rows, learned.late, learned.highest = math.floor(learned.rows / 2), math.floor(learned.late / 2), 0
  end
  return false
end

-- Return a learned lag (nil: not learned yet) after it has moved: it widens at once, and narrows in steps.
function target_completeness.moved_lag(lag, wanted, steps)
  if not lag or wanted > lag then return wanted end
  for _ = 1, math.min(steps, constants.MAX_STEPS) do lag = lag - math.ceil((lag - wanted) / constants.NARROWING) end
  return lag
end

-- Return the new learned state of a member (nil: no lag learned yet), and whether the learned lag was discarded.
local function learn(rule, learned, rows, own, pool, steps)
  local lag = learned and policy.within(rule, learned.lag)
  if learned and is_surprised(rule, learned, lag, rows) then
    own.buckets, own.weights = {}, {}
    local longest = math.min(math.floor(sketch.edges()[learned.highest]),
      math.max(constants.MAX_WIDENING * lag, rule.cold_start_lag_ms))
    return {lag = policy.within(rule, math.max(lag, longest)), relearning = true, rows = 0, late = 0, highest = 0}, true
  end
  if learned and learned.relearning and learned.rows < rule.enough then return learned end
  local wanted = target_completeness.wanted_lag(rule, own, pool)
  if not wanted and learned and learned.relearning then wanted = lag_of(rule, own) end
  if not wanted then return learned end
  learned = learned or {rows = 0, late = 0, highest = 0}
  if learned.relearning then lag = nil end
  learned.lag, learned.relearning = target_completeness.moved_lag(lag, wanted, steps), false
  return learned
end

-- Move the lag of a member, and return whether the learned lag was discarded. An active member's watermark follows at
-- once; an idle member keeps its watermark.
function target_completeness.learn(member, max_event_time, rows, own, pool, steps)
  local rule = policy.of(member)
  local learned, discarded = learn(rule, learned_of(member), rows, own, pool, steps)
  if learned then
    keep(member, learned)
    local watermark = values.score(values.minus(max_event_time, policy.within(rule, learned.lag)))
    redis.call('ZADD', key.active, 'XX', 'GT', watermark, member)
  end
  return discarded or false
end

return policy, timestamp_history, follower, target_completeness
