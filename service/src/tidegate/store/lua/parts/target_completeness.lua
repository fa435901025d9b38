-- @include parts/policy
-- @include parts/sketch
-- The lag learned from delays, with the same steps as tidegate.domain.policy.target_completeness.
local text = values.text
local target_completeness = {}
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

local function wanted_lag(rule, own, pool)
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
  local wanted = wanted_lag(rule, own, pool)
  if not wanted and learned and learned.relearning then wanted = lag_of(rule, own) end
  if not wanted then return learned end
  learned = learned or {rows = 0, late = 0, highest = 0}
  if not lag or learned.relearning or wanted > lag then
    learned.lag, learned.relearning = wanted, false
    return learned
  end
  for _ = 1, math.min(steps, constants.MAX_STEPS) do lag = lag - math.ceil((lag - wanted) / constants.NARROWING) end
  learned.lag = lag
  return learned
end

-- Move the lag of a member, and return whether the learned lag was discarded. The evaluation raises the watermark.
function target_completeness.learn(member, max_event_time, rows, own, pool, steps)
  local rule = policy.of(member)
  local learned, discarded = learn(rule, learned_of(member), rows, own, pool, steps)
  if learned then
    keep(member, learned)
    state.changes.raised[member] = values.score(values.minus(max_event_time, policy.within(rule, learned.lag)))
  end
  return discarded or false
end

-- Raise the watermarks of the active members whose lags have moved in this command. A member that has become idle in
-- the same evaluation keeps its watermark.
function target_completeness.raise()
  for member, watermark in pairs(state.changes.raised) do
    redis.call('ZADD', key.active, 'XX', 'GT', watermark, member)
  end
end

return target_completeness
