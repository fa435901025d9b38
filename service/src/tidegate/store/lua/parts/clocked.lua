-- @include parts/policy
-- @include parts/history
-- @include parts/bulk
-- Substreams whose policies follow the clock. A look must not cost a step for each of them, so their watermarks are not
-- kept but reckoned. A policy's watermark p, once polled at t, is  v + max(0, t - due):
--
--   lull         v, and due is its deadline          in K.still (score v) until due, then in K.drift (score v - due)
--   wall clock   v, and due is v + wall_clock_lag    likewise
--   delay        a step function: in K.still, due is its next step
--
-- The substream's own watermark is  max(a, min(p(t), c))  over the looks (t, c) since a was last reckoned, c being the cap
-- of a look. Only looks that no later one outdoes matter: the stairs, J.stairs. J.least is the lowest own watermark of
-- all that are live, and one look takes it from before to  max(J.least, min(P, c))  with the lowest p, P: exact as long as
-- nobody left. Where that cannot be said (J.literal), a look does what the rules say, for each (look_literally).
--
-- State in K.clocked: a, since (the number of the look it was reckoned at), and the policy's own.

-- `lost`: the J.lost that held at `t`.
local function wall(policy, t, lost)
  return minus(t + lost, policy.wall_clock_lag)
end

local function state_text(s)
  local parts = {fmt(s.a), fmt(s.since)}
  if s.history then
    parts[3], parts[4], parts[5] = fmt(s.v), fmt(s.polled), history_text(s.history)
  else
    parts[3], parts[4] = fmt(s.v), fmt(s.deadline)
  end
  return table.concat(parts, ',')
end

local function state_of(text, policy)
  local parts = split(text, ',')
  local s = {a = num(parts[1]), since = tonumber(parts[2]), v = num(parts[3])}
  if policy.max_delay then
    s.polled, s.history = num(parts[4]), history_of(parts, 5)
  else
    s.deadline = num(parts[4])
  end
  return s
end

local function new_state(policy, a)
  local s = {a = a, since = J.looks or 0}
  if policy.max_delay then s.history = history(policy.max_delay) end
  return s
end

-- What the policy says when polled at `t`, changing nothing. A delay's steps are taken where they are due.
local function polled_at(s, policy, t, lost)
  if policy.limit == 'max_lull_ms' then
    if s.v and s.deadline and t > s.deadline then return math.min(s.v + (t - s.deadline), HIGHEST) end
    return s.v
  end
  if policy.limit == 'wall_clock_lag_ms' then return higher(s.v, wall(policy, t, lost)) end
  return s.v
end

local function read_stairs()
  if J.steps then return J.steps end
  J.steps = {}
  if J.stairs ~= '' then
    for _, step in ipairs(split(J.stairs, ';')) do
      local parts = split(step, ',')
      J.steps[#J.steps + 1] = {seq = tonumber(parts[1]), t = tonumber(parts[2]), cap = num(parts[3]) or math.huge}
    end
  end
  return J.steps
end

local function write_stairs()
  local parts = {}
  for i, step in ipairs(J.steps) do
    parts[i] = fmt(step.seq) .. ',' .. fmt(step.t) .. ',' .. (step.cap == math.huge and '' or fmt(step.cap))
  end
  J.stairs = table.concat(parts, ';')
end

-- The substream's own watermark, by the looks up to the last one.
local function own_watermark(s, policy)
  local watermark = s.a
  for _, step in ipairs(read_stairs()) do
    if step.seq > s.since then
      local polled = polled_at(s, policy, step.t, J.look_lost)
      if polled then watermark = higher(watermark, math.min(polled, step.cap)) end
    end
  end
  return watermark
end

-- Looks that came so long after the one before that a history may have begun its slots anew.
local function read_gaps()
  local gaps = {}
  if J.gaps ~= '' then
    for _, gap in ipairs(split(J.gaps, ';')) do
      local parts = split(gap, ',')
      gaps[#gaps + 1] = {tonumber(parts[1]), tonumber(parts[2])}
    end
  end
  return gaps
end

local function shortest_delay()
  local shortest
  for _, policy in ipairs(R.policies) do
    if policy.max_delay then shortest = math.min(shortest or policy.max_delay, policy.max_delay) end
  end
  return shortest
end

-- Takes a history to the look at `t`, as if it had been sampled with the same value at every look on the way.
local function catch_up(s, t, top)
  local h = s.history
  if not h.boundary then return end
  for _, gap in ipairs(read_gaps()) do
    if s.polled and gap[1] >= s.polled and gap[2] <= t then
      roll(h, gap[1])
      sample(h, gap[2], top)
    end
  end
  roll(h, t)
end

-- Reckons `a`, and takes the policy to the last look, if there was one since.
local function reckon(s, policy, top)
  s.a = own_watermark(s, policy)
  if J.looks > s.since then
    if policy.limit == 'max_lull_ms' then
      s.v = polled_at(s, policy, J.look, J.look_lost)
      if s.deadline then s.deadline = math.max(s.deadline, J.look) end
    elseif policy.limit == 'wall_clock_lag_ms' then
      s.v = polled_at(s, policy, J.look, J.look_lost)
    else
      if s.history.boundary then
        catch_up(s, J.look, top)
        s.v = higher(s.v, s.history.cells[1] or nil)
      end
      s.polled = J.look
    end
  end
  s.since = J.looks
end

-- Polls at `t`, literally.
local function poll(s, policy, t, top)
  if policy.max_delay then
    s.v, s.polled = higher(s.v, sample(s.history, t, top)), t
    return
  end
  s.v = polled_at(s, policy, t, J.lost)
  if policy.limit == 'max_lull_ms' then
    s.deadline = math.max(s.deadline or t + policy.max_lull, t)
  end
end

-- An event is seen; `top` is the highest event time with it.
local function see(s, policy, time, top)
  local lagged = minus(time, policy.lag)
  if policy.max_delay then
    s.v = higher(higher(s.v, lagged), sample(s.history, J.t, top))
    s.polled = J.t
  elseif policy.limit == 'max_lull_ms' then
    s.v, s.deadline = higher(s.v, lagged), J.t + policy.max_lull
  else
    s.v = higher(higher(s.v, wall(policy, J.t, J.lost)), lagged)
  end
  return lagged
end
