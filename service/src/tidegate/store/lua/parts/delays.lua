-- @include parts/lags
-- Delays of rows, and the lags that are learnt from them: tidegate.domain.sketch and its users, step by step. A sketch
-- is kept packed: step, position, buckets, weights.
local measure

do  -- what is local to a block is not among the 200 locals that Lua lets a script have
  local L = K.learning
  local ROW, MOST_BUCKETS, HIGHEST_BUCKET, MARGIN, TIGHTENING = L.ROW, L.MOST_BUCKETS, L.HIGHEST_BUCKET, L.MARGIN, L.TIGHTENING
  local STEPS_AT_ONCE, SEEN_BEYOND, SURPRISE, MOST_WIDENING = L.STEPS_AT_ONCE, L.SEEN_BEYOND, L.SURPRISE, L.MOST_WIDENING
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

  -- Buckets in order, and beside each its weight: a script that touches many sketches has no time to sort them.
  local function sketch_of(packed)
    if not packed then return {step = 0, position = 0, buckets = {}, weights = {}} end
    local kept = cmsgpack.unpack(packed)
    return {step = kept[1], position = kept[2], buckets = kept[3], weights = kept[4]}
  end

  local function packed(s)
    return cmsgpack.pack({s.step, s.position, s.buckets, s.weights})
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
    local buckets, weights = {}, {}
    for i, weight in ipairs(s.weights) do
      weight = faded(weight, passed)
      if weight > 0 then buckets[#buckets + 1], weights[#weights + 1] = s.buckets[i], weight end
    end
    s.buckets, s.weights = buckets, weights
    return passed
  end

  -- Where a bucket is, or would be, in a list of them.
  local function place_of(buckets, bucket)
    local low, high = 1, #buckets + 1
    while low < high do
      local middle = math.floor((low + high) / 2)
      if buckets[middle] < bucket then low = middle + 1 else high = middle end
    end
    return low
  end

  -- Counts the lowest buckets beyond so many in the lowest that is kept; bucket 0 is beside these.
  local function bound(s)
    local first = s.buckets[1] == 0 and 2 or 1
    local excess = #s.buckets - (first - 1) - MOST_BUCKETS
    if excess <= 0 then return end
    local buckets, weights = {}, {}
    if first == 2 then buckets[1], weights[1] = 0, s.weights[1] end
    for i = first + excess, #s.buckets do
      buckets[#buckets + 1], weights[#weights + 1] = s.buckets[i], s.weights[i]
    end
    for i = first, first + excess - 1 do weights[first] = math.min(weights[first] + s.weights[i], MOST_WEIGHT) end
    s.buckets, s.weights = buckets, weights
  end

  local function add_rows(s, rows)
    local buckets, weights, new = s.buckets, s.weights, {}
    for bucket, count in pairs(rows) do
      local at = place_of(buckets, bucket)
      if buckets[at] ~= bucket then
        if count > 0 then new[#new + 1] = bucket end
      else
        weights[at] = math.min(weights[at] + math.min(count, MOST_WEIGHT / ROW) * ROW, MOST_WEIGHT)
      end
    end
    if #new == 0 then return end
    table.sort(new)
    local old, left = #buckets, #new
    for at = old + left, 1, -1 do
      if left == 0 then break end
      if old > 0 and buckets[old] > new[left] then
        buckets[at], weights[at] = buckets[old], weights[old]
        old = old - 1
      else
        buckets[at], weights[at] = new[left], math.min(rows[new[left]], MOST_WEIGHT / ROW) * ROW
        left = left - 1
      end
    end
    bound(s)
  end

  local function weight_of(s)
    local total = 0
    for _, weight in ipairs(s.weights) do total = total + weight end
    return total
  end

  local function lag_for(s, beyond)
    local left = 0
    for i = #s.buckets, 1, -1 do
      left = left + s.weights[i]
      if left > beyond then return math.floor(edges()[s.buckets[i]]) end
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
      own.buckets, own.weights = {}, {}
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
    local lags, live, parked = lags_of(known), zmscore(K.live, known), zmscore(K.parked, known)
    local pooled, behind_all = {}, {}
    for i, member in ipairs(known) do
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
      redis.call('HSET', K.delays, field, packed(together))
      if field == 'pool' then pool = together end
    end
    local relearning = {}
    for i, member in ipairs(known) do
      local policy, own = policy_of(member), sketch_of(redis.call('HGET', K.delays, member))
      local passed = fade_to(own, known_tops[i])
      add_rows(own, counts[member])
      if is_target(policy) then
        local l, surprised = learn(policy, learnt_of(member), counts[member], own, pool, passed)
        if surprised then relearning[#relearning + 1] = member end
        if l then
          keep_learnt(member, l)
          redis.call('ZADD', K.live, 'XX', 'GT', score(minus(known_tops[i], within(policy, l.lag))), member)
        end
      end
      redis.call('HSET', K.delays, member, packed(own))
    end
    if #relearning > 0 then
      record('relearning', 'query', query, 'count', fmt(#relearning), 'substreams', named(relearning))
    end
  end
end
