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

-- Add the delays of rows to those of the job in the record of the command. The columns have a list of members with rows,
-- and a list of buckets and rows for each. merged: C without the throttle, when the batch began or before the report.
local function pool(record, members, columns, merged)
  if #members == 0 then return end
  local names, rows = rows_of(members, columns)
  local known, known_times = known_of(names)
  if #known == 0 then return end
  local ahead = ahead_of(known, known_times, merged)
  record.pooled, record.behind_merged = record.pooled or {}, record.behind_merged or {}
  local pooled, behind_merged = record.pooled, record.behind_merged
  for i, member in ipairs(known) do
    for bucket, count in pairs(rows[member]) do
      pooled[bucket] = (pooled[bucket] or 0) + count
      if ahead[i] then
        local behind = bucket > 0 and ahead[i] >= 0 and sketch.bucket_of(sketch.typical(bucket) - ahead[i]) or 0
        behind_merged[behind] = (behind_merged[behind] or 0) + count
      end
    end
  end
end

local function store_pools(record)
  for field, together in pairs({pool = record.pooled, merged = record.behind_merged}) do
    local s = sketch.unpack(redis.call('HGET', key.delays, field))
    sketch.decay_to(s, job.max_event_time)
    sketch.add(s, together)
    redis.call('HSET', key.delays, field, sketch.pack(s))
  end
end

-- Add the delays of rows to those of the members, and update learned lags. Return the members that discarded their lags.
local function learn(members, columns)
  local names, rows = rows_of(members, columns)
  local known, known_times = known_of(names)
  local pooled, relearning = sketch.unpack(redis.call('HGET', key.delays, 'pool')), {}
  for i, member in ipairs(known) do
    local own = sketch.unpack(redis.call('HGET', key.delays, member))
    local decayed = sketch.decay_to(own, known_times[i])
    sketch.add(own, rows[member])
    if policy.is_target(policy.of(member))
      and target_completeness.learn(member, known_times[i], rows[member], own, pooled, decayed) then
      relearning[#relearning + 1] = member
    end
    redis.call('HSET', key.delays, member, sketch.pack(own))
  end
  return relearning
end

-- Return the phases (see parts/steps) that add the delays in the pieces of a command of a query. each(record, visit) visits
-- the pieces. merged(): see pool().
function delays.phases(query, each, merged)
  return function(record)
    local limit = merged()
    local remain = each(record, function(piece) pool(record, piece.delayed or {}, piece.delays, limit) end)
    if not remain and record.pooled then store_pools(record) end
    return remain
  end, function(record)
    if not record.pooled then return false end
    record.relearning = record.relearning or journal.summary()
    local remain = each(record, function(piece) journal.add(record.relearning, learn(piece.delayed, piece.delays)) end)
    if not remain then journal.write_substreams('relearning', query, record.relearning) end
    return remain
  end
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
