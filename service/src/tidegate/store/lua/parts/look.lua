-- @include parts/watermark
-- @include parts/frame
-- @include parts/holds
-- @include parts/clocked_look
-- The look: who is idle, what the live ones merge to, what the throttle lets out. A look that serves a report without a
-- batch takes at most CHUNK of each kind of thing that time has brought about; the rest is due at once.
local PASSED = {}

-- Takes live members out of the merge, with the watermarks they have; returns whether any of them followed the clock.
local function park(members)
  local flat, clocked = by_kind(members)
  for _, kind in ipairs({{flat, zmscore(K.live, flat)}, {clocked, #clocked > 0 and freeze(clocked) or {}}}) do
    local parked = {}
    for i, member in ipairs(kind[1]) do
      parked[#parked + 1], parked[#parked + 2] = score(num(kind[2][i])), member
    end
    zadd(K.parked, nil, parked)
  end
  zrem(K.live, flat)
  return #clocked > 0
end

-- Makes live members of a query idle; `last_events` are theirs.
local function set_idle(query, members, last_events)
  local left = park(members)
  local quiet = {}
  for i, member in ipairs(members) do quiet[#quiet + 1], quiet[#quiet + 2] = last_events[i], member end
  zadd(K.quiet(query), nil, quiet)
  zrem(K.expiry(query), members)
  zadd_all(K.since, fmt(J.now), members)
  return left
end

-- Makes idle those of a query whose last event is at or before `upto`; a chunk of them if `some` will do. Returns whether
-- any followed the clock.
local function fall_idle(query, upto, limit, aside, some)
  local total, first, left = 0, {}, false
  repeat
    local found = redis.call('ZRANGE', K.expiry(query), '-inf', fmt(upto), 'BYSCORE', 'LIMIT', 0, CHUNK, 'WITHSCORES')
    local members, last_events = {}, {}
    for i = 1, #found, 2 do
      members[#members + 1], last_events[#last_events + 1] = found[i], found[i + 1]
      if #first < K.names_kept then first[#first + 1] = found[i] end
    end
    if #members > 0 then
      left = set_idle(query, members, last_events) or left
      if aside then zadd_all(K.told, fmt(J.t), members) end
    end
    total = total + #members
  until #members < CHUNK or some
  if total > 0 then
    limit_acts(limit)
    record('idle', 'limit', limit, 'query', query, 'count', fmt(total), 'substreams', named(first))
  end
  return left
end

-- All that the clock of a query has brought about.
local function expire(query, idle_clock, some)
  if not R.idle_timeout or not idle_clock or J.complete then return false end
  return fall_idle(query, idle_clock - R.idle_timeout, 'idle_timeout_ms', false, some)
end

local function time_out_queries()
  if not R.query_timeout then return false end
  local left = false
  for _, query in ipairs(redis.call('ZRANGE', K.contact, '-inf', fmt(J.t - R.query_timeout), 'BYSCORE')) do
    redis.call('ZREM', K.contact, query)
    left = fall_idle(query, math.huge, 'query_timeout_ms', true) or left
  end
  return left
end

-- The emitted watermark waits no longer for batches that have been open too long.
local function release_batches()
  if not R.max_batch_hold then return end
  for _, query in ipairs(redis.call('ZRANGE', K.begun, '-inf', fmt(J.t - R.max_batch_hold), 'BYSCORE')) do
    redis.call('ZADD', K.begun, '+inf', query)
    redis.call('ZREM', K.open, query)
    redis.call('HSET', K.query(query), 'released', '1')
    limit_acts('max_batch_hold_ms')
    record('batch_released', 'query', query, 'batch_id', redis.call('HGET', K.query(query), 'latest'))
  end
end

-- For the record of an emission: the first of those of `key` that are behind C, and how many there are.
local function behind(key, offset)
  local most = '(' .. fmt(J.coalesced - offset)
  local count = redis.call('ZCOUNT', key, '-inf', most)
  local found = redis.call('ZRANGE', key, '-inf', most, 'BYSCORE', 'LIMIT', 0, K.names_kept, 'WITHSCORES')
  local rows = {}
  for i = 1, #found, 2 do rows[#rows + 1] = {found[i], (num(found[i + 1]) or -math.huge) + offset} end
  return rows, count
end

local function passed(limit, keys)
  local rows, count = {}, 0
  for _, key in ipairs(keys) do
    local some, more = behind(key[1], key[2])
    for _, row in ipairs(some) do rows[#rows + 1] = row end
    count = count + more
  end
  if count == 0 then return end
  table.sort(rows, function(a, b)
    if a[2] ~= b[2] then return a[2] < b[2] end
    return sorts_before(a[1], b[1])
  end)
  local names = {}
  for i = 1, math.min(#rows, K.names_kept) do names[i] = rows[i][1] end
  limit_acts(limit)
  PASSED[#PASSED + 1] = {limit = limit, count = count, substreams = names}
end

local function record_limits(retained)
  if retained then passed('max_retention_ms', {{K.live, 0}, {K.still, 0}, {K.drift, J.t}}) end
  if not R.clocked then return end
  for _, limit in ipairs({'max_delay_ms', 'max_lull_ms', 'wall_clock_lag_ms'}) do
    passed(limit, {{K.lagged(limit), 0}})
  end
end

-- What was the lead so long ago; only a tick may use it.
local function retain(raised, tick)
  if not R.max_retention or not (tick or raised) then return nil end
  local h = J.retention == '' and history(R.max_retention) or history_of(split(J.retention, ','), 1)
  local sampled = sample(h, J.t, J.lead)
  J.retention = history_text(h)
  return tick and sampled or nil
end

-- `cap`: how far those that follow the clock may be taken (nil: no cap). `tick`: only time has passed.
-- `left`: whether any of them was taken out of the merge by this command already.
local function look(cap, tick, left)
  if J.complete then return end
  expire_holds()
  left = time_out_queries() or left
  left = expire('', J.t, cap ~= nil) or left
  release_batches()
  local lead_before, before = J.lead, J.coalesced
  local lowest, more = look_clocked(cap or math.huge, left)
  J.more = more and 1 or nil
  local first, flat = lowest_of(K.live)
  if first then
    lowest = math.min(lowest, flat or -math.huge)
    local _, highest = highest_of(K.live)
    if above(highest, J.lead) then J.lead = highest end
  end
  local merged
  local all_idle = lowest == math.huge
  if all_idle then
    merged = J.lead
  elseif lowest > -math.huge then
    merged = lowest
  end
  local retained = retain(above(J.lead, lead_before), tick)
  local ideal = higher(retained, merged)
  local _, hold = lowest_hold()
  if hold and ideal then ideal = math.min(ideal, hold) end
  advance(candidate(ideal))
  -- How often there was something new to emit, and the throttle let nothing of it out.
  if above(ideal, J.offered) then
    J.offered = ideal
    if above(ideal, J.coalesced) and J.coalesced == before then J.throttled = (J.throttled or 0) + 1 end
  end
  J.looked, J.looked_from = true, before
  if above(J.coalesced, before) then record_limits(above(J.coalesced, merged)) end
  if all_idle ~= (J.all_idle == 1) then
    J.all_idle = all_idle and 1 or nil
    if not all_idle then
      record('not_all_idle')
    elseif redis.call('ZCARD', K.tops) == 0 or redis.call('ZCARD', K.parked) > redis.call('ZCARD', K.done) then
      record('all_idle')
    end
  end
  release()
end
