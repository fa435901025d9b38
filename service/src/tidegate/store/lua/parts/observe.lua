-- @include parts/look
-- @include parts/lags
-- What reports do to the substreams they are of.

-- Moves idle substreams among `members` back to the live ones, with the watermarks they had.
local function wake(query, members, silently)
  if redis.call('EXISTS', K.quiet(query)) == 0 then return end
  local quiet, woken, expiry = zmscore(K.quiet(query), members), {}, {}
  for i, member in ipairs(members) do
    if quiet[i] then
      woken[#woken + 1] = member
      expiry[#expiry + 1], expiry[#expiry + 2] = quiet[i], member
    end
  end
  if #woken == 0 then return end
  local flat, clocked = by_kind(woken)
  local watermarks, tops, live = zmscore(K.parked, flat), zmscore(K.tops, flat), {}
  for i, member in ipairs(flat) do
    local watermark, top = num(watermarks[i]), num(tops[i])
    local lag = flat_lag(policy_of(member), member)
    -- Under another lag than when it fell idle, its top may say more than its watermark.
    if lag and top and not silently then watermark = higher(watermark, minus(top, lag)) end
    live[#live + 1], live[#live + 2] = score(watermark), member
  end
  zadd(K.live, nil, live)
  if #clocked > 0 then thaw(clocked) end
  zadd(K.expiry(query), nil, expiry)
  zrem(K.parked, woken)
  zrem(K.quiet(query), woken)
  zrem(K.told, woken)
  zadd_all(K.since, fmt(J.now), woken)
  if not silently then
    record('active', 'query', query, 'count', fmt(#woken), 'substreams', named(woken))
  end
end

-- The expected query has shown a substream: nothing needs to stand for it any more.
local function end_placeholder(query)
  if redis.call('SREM', K.missing, query) == 0 then return end
  local member = query .. '/'
  for _, key in ipairs({K.tops, K.live, K.parked, K.told, K.expiry(query), K.quiet(query)}) do
    redis.call('ZREM', key, member)
  end
end

local function is_reported(member)
  return policy_of(member).type == 'reported'
end

-- What can have an effect, as columns: members, event times, marks (nil for none). Done substreams are left out, and
-- ready-made watermarks (marks) that are no advance, or for a substream under another policy.
local function effective(members, tops, marks)
  local done, live, parked = {}, {}, {}
  if redis.call('EXISTS', K.done) == 1 then done = zmscore(K.done, members) end
  if next(marks) then live, parked = zmscore(K.live, members), zmscore(K.parked, members) end
  local names, times, ready, n = {}, {}, {}, 0
  for i, member in ipairs(members) do
    if not done[i] then
      local time, mark = num(tops[i]), num(marks[i])
      if mark and not (is_reported(member) and above(mark, num(live[i] or parked[i]))) then mark = nil end
      if time or mark then
        n = n + 1
        names[n], times[n], ready[n] = member, time, mark
      end
    end
  end
  return names, times, ready
end

-- Takes in highest event times and ready-made watermarks (columns, '' for none). `observed`: now, in the observed time
-- of the query. Returns whether that changed anything.
local function observe(query, members, tops, marks, observed)
  local names, times, ready = effective(members, tops, marks)
  if #names == 0 then return false end
  if query ~= '' then end_placeholder(query) end
  wake(query, names)
  local seen, expiry, flat, clocked, clocked_times, now = {}, {}, {}, {}, {}, fmt(observed)
  local learning, learning_times = {}, {}
  for i, member in ipairs(names) do
    local policy, time = policy_of(member), times[i]
    if above(time, J.top) then J.top = time end
    seen[2 * i - 1], seen[2 * i] = score(time), member
    expiry[2 * i - 1], expiry[2 * i] = now, member
    if policy.limit then
      clocked[#clocked + 1], clocked_times[#clocked + 1] = member, time
    else
      local watermark = ready[i]
      if policy.type == 'limiting_lag' then watermark = minus(time, policy.lag) end
      if is_target(policy) then learning[#learning + 1], learning_times[#learning + 1] = member, time end
      flat[#flat + 1], flat[#flat + 2] = score(watermark), member
    end
  end
  if #clocked > 0 then
    local texts, before = hmget(K.clocked, clocked), zmscore(K.tops, clocked)
    for i, member in ipairs(clocked) do
      local top = num(before[i])
      see_live(member, texts[i], clocked_times[i], higher(clocked_times[i], top), top)
    end
  end
  if #learning > 0 then
    local before, lags = zmscore(K.tops, learning), lags_of(learning)
    for i, member in ipairs(learning) do  -- a lag that has become less moves it by the top it had
      flat[#flat + 1], flat[#flat + 2] = score(minus(higher(learning_times[i], num(before[i])), lags[i])), member
    end
  end
  if zadd(K.tops, 'GT', seen) > 0 then zadd_all(K.since, fmt(J.now), names, 'NX') end
  zadd(K.live, 'GT', flat)
  zadd(K.expiry(query), nil, expiry)
  return true
end

-- Declares a substream that is not known; nothing is seen of it yet.
local function introduce(query, members, observed)
  if query ~= '' then
    redis.call('SADD', K.owners, query)
    end_placeholder(query)
  end
  local flat, clocked = by_kind(members)
  zadd_all(K.tops, '-inf', members)
  zadd_all(K.since, fmt(J.now), members)
  zadd_all(K.expiry(query), fmt(observed), members)
  zadd_all(K.live, '-inf', flat)
  for _, member in ipairs(clocked) do see_live(member) end
end

-- A problem where new ones among these make the job too large (`most`: how many substreams it may have, nil: any number).
-- What open batches have staged is to come with them; what stands for a missing query is no substream.
local function check_room(most, members)
  if not most then return end
  local size = redis.call('ZCARD', K.tops) - redis.call('SCARD', K.missing)
  local coming, staged = #members, {}
  for _, query in ipairs(redis.call('ZRANGE', K.begun, 0, -1)) do
    for _, key in ipairs({K.staged(query), K.staged_watermarks(query)}) do
      staged[#staged + 1] = key
      coming = coming + redis.call('ZCARD', key)
    end
  end
  if size + coming <= most then return end
  local new, is_new = 0, {}
  local function count(some)
    local known = zmscore(K.tops, some)
    for i, member in ipairs(some) do
      if not known[i] and not is_new[member] then new, is_new[member] = new + 1, true end
    end
  end
  count(members)
  if new == 0 then return end
  for _, key in ipairs(staged) do count(redis.call('ZRANGE', key, 0, -1)) end
  if size + new > most then return problem('too_many_substreams', fmt(most)) end
end

-- Adds to the counts of those members that are known: there may be any number of others.
local function count_rows(class, members, rows)
  local known = zmscore(K.tops, members)
  for i, member in ipairs(members) do
    if known[i] then add(K.counts, class .. ' ' .. member, rows[i]) end
  end
end

-- Something stands for each expected query that has shown nothing yet, and holds the watermark; for no other.
local function expect()
  local expected = {}
  for _, query in ipairs(R.expected or {}) do expected[query] = true end
  for _, query in ipairs(redis.call('SMEMBERS', K.missing)) do
    if not expected[query] then
      end_placeholder(query)
      if redis.call('HEXISTS', K.query(query), 'run_id') == 0 then redis.call('ZREM', K.contact, query) end
    end
  end
  local ended = {}
  for _, member in ipairs(redis.call('ZRANGE', K.done, 0, -1)) do ended[query_of(member)] = true end
  for _, query in ipairs(R.expected or {}) do
    local shown = ended[query] or redis.call('EXISTS', K.expiry(query), K.quiet(query)) > 0
    if not shown and redis.call('HGET', K.query(query), 'retired') ~= '1' then
      redis.call('SADD', K.missing, query)
      redis.call('SADD', K.owners, query)
      redis.call('ZADD', K.tops, '-inf', query .. '/')
      redis.call('ZADD', K.live, '-inf', query .. '/')
      redis.call('ZADD', K.expiry(query), fmt((observed_by(query))), query .. '/')
      redis.call('ZADD', K.contact, 'NX', fmt(J.t), query)
    end
  end
end

-- What lies beyond it is too far ahead of the clock to be true; nil: nothing is.
local function latest_event_time()
  if R.max_future_skew then return math.min(J.now + R.max_future_skew, HIGHEST) end
end

-- Sets aside what lies too far ahead of the clock to be true, all of a substream's entry with it; it is counted.
local function count_future(members, rows)
  count_rows('future_rows', members, rows)
  for _, number in ipairs(rows) do add(K.job, 'future_rows', number) end
end

local function set_aside_future(query, members, tops, marks, bottoms)
  local latest = latest_event_time()
  if not latest then return members, tops, marks, bottoms end
  local future, ones, kept = {}, {}, {{}, {}, {}, {}}
  for i, member in ipairs(members) do
    if (num(tops[i]) or latest) > latest or (num(marks[i]) or latest) > latest then
      future[#future + 1], ones[#ones + 1] = member, '1'
    else
      local at = #kept[1] + 1
      kept[1][at], kept[2][at], kept[3][at], kept[4][at] = member, tops[i], marks[i], bottoms[i]
    end
  end
  if #future == 0 then return members, tops, marks, bottoms end
  count_future(future, ones)
  record('future', 'query', query, 'count', fmt(#future), 'substreams', named(future))
  return unpack(kept)
end

-- The members that come with a mark alone, under a policy that can make nothing of it.
local function without_event_time(members, tops, marks)
  local missing = {}
  for i, member in ipairs(members) do
    if not num(tops[i]) and num(marks[i]) and not is_reported(member) then missing[#missing + 1] = member end
  end
  if #missing > 0 then return problem('event_time_missing', missing) end
end
