-- @include parts/clocked_sets
-- The look at the substreams that follow the clock. After so many stairs, or gaps, all watermarks are reckoned anew.
local MOST_STAIRS, MOST_GAPS = 16, 8

local function live_clocked()
  local members = redis.call('ZRANGE', K.still, 0, -1)
  for _, member in ipairs(redis.call('ZRANGE', K.drift, 0, -1)) do members[#members + 1] = member end
  return members
end

-- The look as the rules have it: each is polled, one by one.
local function look_literally(cap)
  local members = live_clocked()
  local tops, texts = zmscore(K.tops, members), hmget(K.clocked, members)
  J.least = math.huge
  for i, member in ipairs(members) do
    local policy, top = policy_of(member), num(tops[i])
    local s = state_of(texts[i], policy)
    reckon(s, policy, top)
    poll(s, policy, J.t, top)
    if s.v then s.a = higher(s.a, math.min(s.v, cap)) end
    s.since = J.looks + 1
    place(member, s, policy)
    J.least = math.min(J.least, s.a or -math.huge)
    if above(s.a, J.lead) then J.lead = s.a end
  end
  J.steps, J.stairs, J.gaps, J.literal = {}, '', '', nil
end

-- Those whose time has come begin to drift, or take their step; at most CHUNK. Returns how many there were.
local function take_steps()
  local found = redis.call('ZRANGE', K.due, '-inf', fmt(J.t), 'BYSCORE', 'LIMIT', 0, CHUNK)
  if #found == 0 then return 0 end
  local tops, texts = zmscore(K.tops, found), hmget(K.clocked, found)
  for i, member in ipairs(found) do
    local policy = policy_of(member)
    local s = state_of(texts[i], policy)
    local top = num(tops[i])
    if policy.max_delay then
      reckon(s, policy, top)
      s.v, s.polled = higher(s.v, sample(s.history, J.t, top)), J.t
      place(member, s, policy)
    else
      local _, drift = due_of(s, policy, higher(s.a, s.v))
      if math.abs(drift) > HIGHEST then  -- no score can hold it: it stands still until the next look
        redis.call('ZADD', K.still, score(higher(s.a, polled_at(s, policy, J.t, J.lost))), member)
        redis.call('ZADD', K.due, score(J.t + 1), member)
      else
        redis.call('ZREM', K.due, member)
        redis.call('ZREM', K.still, member)
        redis.call('ZADD', K.drift, score(drift), member)
      end
    end
  end
  return #found
end

-- The lowest and the highest reading at `t`, infinite where there is none; an unread one counts as -inf.
local function readings(t)
  local lowest, highest = math.huge, -math.huge
  local member, reading = lowest_of(K.still)
  if member then
    lowest = reading or -math.huge
    local _, most = highest_of(K.still)
    highest = most or -math.huge
  end
  member, reading = lowest_of(K.drift)
  if member then
    lowest = math.min(lowest, reading + t, HIGHEST)
    local _, most = highest_of(K.drift)
    highest = math.max(highest, math.min(most + t, HIGHEST))
  end
  return lowest, highest
end

local function push_stair(cap)
  local steps = read_stairs()
  while #steps > 0 and steps[#steps].cap <= cap do steps[#steps] = nil end
  steps[#steps + 1] = {seq = J.looks + 1, t = J.t, cap = cap}
  write_stairs()
  if #steps >= MOST_STAIRS then J.literal = 1 end
end

local function note_gap()
  local shortest = shortest_delay()
  if not shortest or not J.look or J.t - J.look <= shortest then return end
  local gap = fmt(J.look) .. ',' .. fmt(J.t)
  J.gaps = J.gaps == '' and gap or J.gaps .. ';' .. gap
  if #read_gaps() >= MOST_GAPS then J.literal = 1 end
end

-- `cap`: how far this look may take them (infinite: no cap). `left`: whether any fell idle just now. Returns the lowest
-- own watermark (infinite where none is live), and whether the cap kept anything back.
local function look_clocked(cap, left)
  if not R.clocked or redis.call('EXISTS', K.clocked) == 0 then
    J.least = math.huge
    J.look, J.look_lost, J.looks = J.t, J.lost, J.looks + 1
    return math.huge, false
  end
  if J.lost ~= J.look_lost then J.literal = 1 end
  local more = false
  if J.literal then
    look_literally(cap)
  else
    note_gap()
    more = take_steps() == CHUNK
    local lowest, highest = readings(J.t)
    if left and cap < lowest and lowest < math.huge then
      look_literally(cap)
    else
      J.least = lowest == math.huge and lowest or math.max(J.least, math.min(lowest, cap))
      local lead = math.min(highest, cap)
      if highest > -math.huge and above(lead, J.lead) then J.lead = lead end
      push_stair(cap)
    end
  end
  local kept_back = false
  if cap < math.huge then
    local _, furthest = readings(J.t)
    kept_back = furthest > cap
  end
  J.look, J.look_lost, J.looks = J.t, J.lost, J.looks + 1
  return J.least, more or kept_back
end
