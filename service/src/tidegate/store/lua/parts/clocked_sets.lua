-- @include parts/clocked
-- Where looks find the live substreams that follow the clock, and how they come and go.

-- From when on it reads more than `reading` (its reading now), and its score once it drifts.
local function due_of(s, policy, reading)
  if policy.max_delay then
    if not s.history.boundary then return -math.huge end
    return next_change(s.history, function(cell) return above(cell, reading) end)
  end
  if policy.limit == 'wall_clock_lag_ms' then
    local drift = J.lost - policy.wall_clock_lag
    if reading == nil then return -math.huge, drift end
    return reading - drift, drift
  end
  if s.v == nil or s.deadline == nil then return nil end
  local due = s.deadline + (reading - s.v)
  return due, reading - due
end

-- Writes a live substream's state, and puts it where looks find it.
local function place(member, s, policy)
  redis.call('HSET', K.clocked, member, state_text(s))
  local reading = higher(s.a, s.v)
  local due = due_of(s, policy, reading)
  redis.call('ZREM', K.drift, member)
  redis.call('ZADD', K.still, score(reading), member)
  if due then redis.call('ZADD', K.due, score(due), member) else redis.call('ZREM', K.due, member) end
end

local function displace(members)
  zrem(K.still, members)
  zrem(K.drift, members)
  zrem(K.due, members)
  for _, limit in pairs(CLOCK_LIMITS) do zrem(K.lagged(limit), members) end
end

-- Takes live members out; returns their own watermarks, which stand from now on.
local function freeze(members)
  local tops, texts, watermarks = zmscore(K.tops, members), hmget(K.clocked, members), {}
  for i, member in ipairs(members) do
    local policy = policy_of(member)
    local s = state_of(texts[i], policy)
    reckon(s, policy, num(tops[i]))
    watermarks[i] = s.a
    redis.call('HSET', K.clocked, member, state_text(s))
  end
  displace(members)
  return watermarks
end

-- Puts members back as they were frozen, with the highest that their lag alone has given them.
local function thaw(members)
  local texts, tops = hmget(K.clocked, members), zmscore(K.tops, members)
  for i, member in ipairs(members) do
    local policy = policy_of(member)
    local s, top = state_of(texts[i], policy), num(tops[i])
    s.since = J.looks
    place(member, s, policy)
    redis.call('ZADD', K.lagged(policy.limit), score(top and minus(top, policy.lag)), member)
    J.least = math.min(J.least, s.a or -math.huge)
    if above(s.a, J.lead) then J.literal = 1 end  -- it was restored while it was idle
  end
end

-- A live substream saw `time`, which may be its first; `top` is its highest with that.
local function see_live(member, text, time, top, top_before)
  local policy = policy_of(member)
  local s
  if text then
    s = state_of(text, policy)
    reckon(s, policy, top_before)
  else
    s = new_state(policy)
    J.least = -math.huge
  end
  local lagged = time and see(s, policy, time, top)
  place(member, s, policy)
  if time or not text then
    redis.call('ZADD', K.lagged(policy.limit), 'GT', score(lagged), member)
  end
end
