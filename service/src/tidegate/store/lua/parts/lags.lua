-- @include parts/policy
-- @include parts/bulk
-- The lags that policies keep, and what waiting costs beside them: tidegate.domain.policy and tidegate.domain.disorder.
local MOST_WEIGHT, STEPS = K.learning.MOST_WEIGHT, K.learning.STEPS

local function faded(weight, steps)
  local halvings = math.floor(steps / STEPS)
  if halvings >= 60 then return 0 end
  return math.floor(math.floor(weight * K.fades[steps - STEPS * halvings + 1]) * 2 ^ -halvings)
end

local function fade_step()
  return math.max(1, math.floor(R.delay_half_life / STEPS))
end

-- How many whole steps there are in a time.
local function steps_in(time, step)
  local rest = math.fmod(time, step)
  if rest < 0 then rest = rest + step end
  local steps = (time - rest) / step
  local whole = math.floor(steps)
  return steps - whole < 0.5 and whole or whole + 1
end

local function within(policy, lag)
  return math.max(policy.ceiling and math.min(lag, policy.ceiling) or lag, policy.floor)
end

local function is_target(policy)
  return policy.type == 'target_completeness'
end

-- How far behind its top the policy of each of these members keeps it, limits aside; '' where that is not its business.
local function lags_of(members)
  local lags, asked = {}, {}
  for i, member in ipairs(members) do
    local policy = policy_of(member)
    lags[i] = policy.lag or ''
    if is_target(policy) then asked[#asked + 1] = i end
  end
  if #asked > 0 then
    local names = {}
    for at, i in ipairs(asked) do names[at] = members[i] end
    local texts = hmget(K.lags, names)
    for at, i in ipairs(asked) do
      local policy = policy_of(members[i])
      local learnt = texts[at] and tonumber(string.match(texts[at], '^%d+'))
      lags[i] = learnt and within(policy, learnt) or policy.cold_start
    end
  end
  return lags
end

-- The lag that gives a member its watermark whenever its top is known; nil where the policy has more to say, or another.
local function flat_lag(policy, member)
  if is_target(policy) then return lags_of({member})[1] end
  return policy.type == 'limiting_lag' and policy.lag or nil
end

-- The watermark has passed on from `before`: how long what came out in between had to wait, less the lag of `member`,
-- which is furthest behind.
local function count_wait(before, member)
  local lag = member and lags_of({member})[1] or ''
  if not before or lag == '' or not J.top then return end
  local step, slide = fade_step(), R.throttle and R.throttle.type == 'frame' and R.throttle.slide or 0
  local left = faded(J.wait_weight or 0, steps_in(J.coalesced, step) - steps_in(before, step))
  local weight = math.min(J.coalesced - before, MOST_WEIGHT - left)
  local middle = before + (J.coalesced - before + slide) / 2
  local share = J.wait_weight and J.wait_weight > 0 and left / J.wait_weight or 0
  J.waited = string.format('%.17g', (tonumber(J.waited) or 0) * share + (J.top - lag - middle) * weight)
  J.wait_weight = left + weight
end
