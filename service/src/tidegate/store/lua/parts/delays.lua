-- @include parts/target_completeness
-- @include parts/emission
-- The delays of rows, and the latency in addition to the lag. See tidegate.domain.delays.
local number = values.number
local job = state.job
local delays = {}

-- Return the members that have rows, and their rows by bucket. A member may occur several times. The columns are lists
-- of alternating buckets and rows.
local function rows_of(members, columns)
  local names, rows = {}, {}
  for i, member in ipairs(members) do
    local pairs_ = columns[i]
    if #pairs_ > 0 then
      if not rows[member] then rows[member], names[#names + 1] = {}, member end
      for at = 1, #pairs_, 2 do rows[member][pairs_[at]] = (rows[member][pairs_[at]] or 0) + pairs_[at + 1] end
    end
  end
  return names, rows
end

-- Return the members that have a max event time and are not done, and their max event times.
local function known_of(names)
  local event_times, done = max_event_times.of(names), bulk.zmscore(key.done, names)
  local known, known_times = {}, {}
  for i, member in ipairs(names) do
    if event_times[i] and not done[i] then
      known[#known + 1], known_times[#known + 1] = member, event_times[i]
    end
  end
  return known, known_times
end

-- Return the distance of each member's watermark above the merged watermark: -1 if there is no merged watermark, false
-- if the member has no lag.
local function ahead_of(known, known_times, merged)
  local lags, ahead = policy.lags_of(known), {}
  local active, frozen = bulk.zmscore(key.active, known), bulk.zmscore(key.frozen, known)
  for i, member in ipairs(known) do
    local own = not policy.of(member).limit and number(active[i] or frozen[i])
    if lags[i] and not own then own = known_times[i] - lags[i] end
    ahead[i] = lags[i] and (merged and math.max(own - merged, 0) or -1)
  end
  return ahead
end

local function add_to_pools(known, rows, ahead)
  local pooled, behind_merged = {}, {}
  for i, member in ipairs(known) do
    for bucket, count in pairs(rows[member]) do
      pooled[bucket] = (pooled[bucket] or 0) + count
      if ahead[i] then
        local behind = bucket > 0 and ahead[i] >= 0 and sketch.bucket_of(sketch.typical(bucket) - ahead[i]) or 0
        behind_merged[behind] = (behind_merged[behind] or 0) + count
      end
    end
  end
  local pools = {pool = pooled, merged = behind_merged}
  for field, together in pairs(pools) do
    local s = sketch.unpack(redis.call('HGET', key.delays, field))
    sketch.decay_to(s, job.max_event_time)
    sketch.add(s, together)
    redis.call('HSET', key.delays, field, sketch.pack(s))
    pools[field] = s
  end
  return pools.pool
end

-- Add the delays of rows, and update learned lags. merged: C without the throttle, when the batch began or before the
-- report.
function delays.measure(query, members, columns, merged)
  local names, rows = rows_of(members, columns)
  local known, known_times = known_of(names)
  if #known == 0 then return end
  local pool = add_to_pools(known, rows, ahead_of(known, known_times, merged))
  local relearning = {}
  for i, member in ipairs(known) do
    local own = sketch.unpack(redis.call('HGET', key.delays, member))
    local steps = sketch.decay_to(own, known_times[i])
    sketch.add(own, rows[member])
    if policy.is_target(policy.of(member))
      and target_completeness.learn(member, known_times[i], rows[member], own, pool, steps) then
      relearning[#relearning + 1] = member
    end
    redis.call('HSET', key.delays, member, sketch.pack(own))
  end
  if #relearning > 0 then journal.write_substreams('relearning', query, relearning) end
end

-- Add the latency of the event times in (before, C] to the statistics.
function delays.count_wait(before)
  local after = job.coalesced_watermark
  if not before or not after or after <= before or not job.max_event_time then return end
  local member = emission.slowest()
  local lag = member and policy.lags_of({member})[1]
  if not lag then return end
  local step = sketch.step()
  local steps = sketch.steps_in(after, step) - sketch.steps_in(before, step)
  local remaining = sketch.decayed(job.wait_weight or 0, steps)
  local weight = math.min(after - before, constants.MAX_WEIGHT - remaining)
  local middle = before + (after - before + state.config.throttle.slide) / 2
  local share = job.wait_weight and job.wait_weight > 0 and remaining / job.wait_weight or 0
  job.wait_sum = (job.wait_sum or 0) * share + (job.max_event_time - lag - middle) * weight
  job.wait_weight = remaining + weight
end

return delays
