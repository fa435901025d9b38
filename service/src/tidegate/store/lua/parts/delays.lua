-- @include parts/lags
-- Delays of rows, and the lags that are learnt from them: tidegate.domain.sketch and its users, step by step. A sketch
-- is kept as text: step, position, then buckets with their weights.
local measure

do  -- what is local to a block is not among the 200 locals that Lua lets a script have
  local ROW, MOST_BUCKETS, HIGHEST_BUCKET = 1000, 640, 1838
  local MARGIN, TIGHTENING, STEPS_AT_ONCE, SEEN_BEYOND, SURPRISE, MOST_WIDENING = 0.5, 4, 64, 10, 3, 4
  local EDGES

  local function edges()
    if not EDGES then
      EDGES = {[0] = 0, 1}
      for bucket = 2, HIGHEST_BUCKET do EDGES[bucket] = EDGES[bucket - 1] * K.gamma end
    end
    return EDGES
  end

  local function bucket_of(delay)
    if delay <= 0 then return 0 end
    local low, high = 0, HIGHEST_BUCKET
    while high - low > 1 do
      local middle = math.floor((low + high) / 2)
      if edges()[middle] < delay then low = middle else high = middle end
    end
    return high
  end

  local function typical(bucket)
    return math.floor(edges()[bucket] * 2 / (K.gamma + 1) + 0.5)
  end

  local function sketch_of(text)
    local s = {step = 0, position = 0, weights = {}}
    if not text then return s end
    local numbers = cjson.decode('[' .. text .. ']')
    s.step, s.position = numbers[1], numbers[2]
    for i = 3, #numbers, 2 do s.weights[numbers[i]] = numbers[i + 1] end
    return s
  end

  local function sketch_text(s)
    local parts = {fmt(s.step), fmt(s.position)}
    for bucket, weight in pairs(s.weights) do
      parts[#parts + 1], parts[#parts + 2] = fmt(bucket), fmt(weight)
    end
    return table.concat(parts, ',')
  end

  local function fade_to(s, top)
    local step = fade_step()
    local position = steps_in(top, step)
    if step ~= s.step then
      s.step, s.position = step, position
      return 0
    end
    local passed = position - s.position
    if passed <= 0 then return 0 end
    s.position = position
    local left = {}
    for bucket, weight in pairs(s.weights) do
      weight = faded(weight, passed)
      if weight > 0 then left[bucket] = weight end
    end
    s.weights = left
    return passed
  end

  local function buckets_of(s)
    local found = {}
    for bucket in pairs(s.weights) do found[#found + 1] = bucket end
    table.sort(found)
    return found
  end

  local function add_rows(s, rows)
    local weights = s.weights
    for bucket, count in pairs(rows) do
      if count > 0 then
        local weight = math.min(count, MOST_WEIGHT / ROW) * ROW
        weights[bucket] = math.min((weights[bucket] or 0) + weight, MOST_WEIGHT)
      end
    end
    local found = buckets_of(s)
    local first = weights[0] and 2 or 1
    local lowest_kept = #found - MOST_BUCKETS + 1
    for i = first, lowest_kept - 1 do
      local kept = found[lowest_kept]
      weights[kept] = math.min(weights[kept] + weights[found[i]], MOST_WEIGHT)
      weights[found[i]] = nil
    end
  end

  local function weight_of(s)
    local total = 0
    for _, weight in pairs(s.weights) do total = total + weight end
    return total
  end

  local function lag_for(s, beyond)
    local found, left = buckets_of(s), 0
    for i = #found, 1, -1 do
      left = left + s.weights[found[i]]
      if left > beyond then return math.floor(edges()[found[i]]) end
    end
    return 0
  end

  -- The lag that these delays speak for, however few.
  local function lag_by(policy, seen)
    local beyond = weight_of(seen) * policy.late_share / ROW
    return within(policy, lag_for(seen, math.floor(math.max(beyond - MARGIN * math.sqrt(beyond), 0) * ROW)))
  end

  -- The lag that delays speak for; nil while too few are known.
  local function wanted(policy, own, pool)
    for _, seen in ipairs({own, pool}) do
      if weight_of(seen) >= policy.enough * ROW then return lag_by(policy, seen) end
    end
  end

  -- What was learnt of a member: the lag, whether another is being learnt, and of the last rows how many there were, how
  -- many were beyond the lag, and the highest bucket of these; nil where nothing was.
  local function learnt_of(member)
    local text = redis.call('HGET', K.lags, member)
    if not text then return nil end
    local numbers = cjson.decode('[' .. text .. ']')
    return {lag = numbers[1], relearning = numbers[2] == 1, rows = numbers[3], late = numbers[4], highest = numbers[5]}
  end

  local function keep_learnt(member, l)
    local numbers = {fmt(l.lag), l.relearning and '1' or '0', fmt(l.rows), fmt(l.late), fmt(l.highest)}
    redis.call('HSET', K.lags, member, table.concat(numbers, ','))
  end

  local function is_surprised(policy, l, lag, rows)
    for bucket, count in pairs(rows) do
      l.rows = l.rows + count
      if count > 0 and math.floor(edges()[bucket]) > lag then
        l.late, l.highest = l.late + count, math.max(l.highest, bucket)
      end
    end
    local expected = l.rows * policy.late_share
    local may_widen = not policy.ceiling or lag < policy.ceiling
    if may_widen and l.late >= SEEN_BEYOND and l.late > expected + SURPRISE * math.sqrt(expected) then return true end
    if l.rows > 2 * policy.window then
      l.rows, l.late, l.highest = math.floor(l.rows / 2), math.floor(l.late / 2), 0
    end
    return false
  end

  -- What is learnt of a member now; and whether what was learnt no longer holds, and has been forgotten in `own`, too.
  local function learn(policy, l, rows, own, pool, steps)
    local lag = l and within(policy, l.lag)
    if l and is_surprised(policy, l, lag, rows) then
      own.weights = {}
      local longest = math.min(math.floor(edges()[l.highest]), math.max(MOST_WIDENING * lag, policy.cold_start))
      lag = within(policy, math.max(lag, longest))
      return {lag = lag, relearning = true, rows = 0, late = 0, highest = 0}, true
    end
    if l and l.relearning and l.rows < policy.enough then return l end
    local want = wanted(policy, own, pool)
    if not want and l and l.relearning then want = lag_by(policy, own) end
    if not want then return l end
    l = l or {rows = 0, late = 0, highest = 0}
    if not lag or l.relearning or want > lag then
      l.lag, l.relearning = want, false
      return l
    end
    for _ = 1, math.min(steps, STEPS_AT_ONCE) do lag = lag - math.ceil((lag - want) / TIGHTENING) end
    l.lag = lag
    return l
  end

  -- Adds what a text (buckets, each followed by how many rows) says to counts by bucket.
  local function count_delays(counts, text)
    local numbers = cjson.decode('[' .. text .. ']')
    for i = 1, #numbers, 2 do counts[numbers[i]] = (counts[numbers[i]] or 0) + numbers[i + 1] end
  end

  -- Takes in how far rows came behind their substreams' tops: members, which may come several times, and texts as above.
  -- `merged`: where the watermark would have been for these rows without a throttle. What has no top has nothing that
  -- rows could be behind.
  function measure(query, all, texts, merged)
    local members, counts = {}, {}
    for i, member in ipairs(all) do
      if texts[i] ~= '' then
        if not counts[member] then counts[member], members[#members + 1] = {}, member end
        count_delays(counts[member], texts[i])
      end
    end
    if #members == 0 then return end
    local tops, done, known, known_tops = zmscore(K.tops, members), zmscore(K.done, members), {}, {}
    for i, member in ipairs(members) do
      if num(tops[i]) and not done[i] and next(counts[member]) then
        known[#known + 1], known_tops[#known + 1] = member, num(tops[i])
      end
    end
    if #known == 0 then return end
    local lags, texts_before = lags_of(known), hmget(K.delays, known)
    local live, parked = zmscore(K.live, known), zmscore(K.parked, known)
    local own, passed, pooled, behind_all = {}, {}, {}, {}
    for i, member in ipairs(known) do
      own[i] = sketch_of(texts_before[i])
      passed[i] = fade_to(own[i], known_tops[i])
      add_rows(own[i], counts[member])
      local ahead = merged and lags[i] ~= '' and
        math.max((not policy_of(member).limit and num(live[i] or parked[i]) or known_tops[i] - lags[i]) - merged, 0)
      for bucket, rows in pairs(counts[member]) do
        pooled[bucket] = (pooled[bucket] or 0) + rows
        if lags[i] ~= '' then
          local behind = bucket > 0 and ahead and bucket_of(typical(bucket) - ahead) or 0
          behind_all[behind] = (behind_all[behind] or 0) + rows
        end
      end
    end
    local pool
    for field, rows in pairs({pool = pooled, merged = behind_all}) do
      local together = sketch_of(redis.call('HGET', K.delays, field))
      fade_to(together, J.top)
      add_rows(together, rows)
      redis.call('HSET', K.delays, field, sketch_text(together))
      if field == 'pool' then pool = together end
    end
    local relearning = {}
    for i, member in ipairs(known) do
      local policy = policy_of(member)
      if is_target(policy) then
        local l, surprised = learn(policy, learnt_of(member), counts[member], own[i], pool, passed[i])
        if surprised then relearning[#relearning + 1] = member end
        if l then
          keep_learnt(member, l)
          redis.call('ZADD', K.live, 'XX', 'GT', score(minus(known_tops[i], within(policy, l.lag))), member)
        end
      end
      redis.call('HSET', K.delays, member, sketch_text(own[i]))
    end
    if #relearning > 0 then
      record('relearn', 'query', query, 'count', fmt(#relearning), 'substreams', named(relearning))
    end
  end
end
