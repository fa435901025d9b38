-- What is known of how far rows come out of order. Changes nothing.
--
-- KEYS  1 the job
-- ARGV  now · absent after · not after · members (column); those not known are passed over
-- Reply ok, ... (parts/answer), waited, over how much, the sketch of all delays, that behind the merged watermark,
--       rows: each member, lag in force, its sketch (step, position, then buckets with their weights; nil: none)
--       or error: job_not_found, job_deleted
-- @include parts/answer
local members = column()
local refused = load_job()
if refused then return refused end
local tops, done, sketches = zmscore(K.tops, members), zmscore(K.done, members), hmget(K.delays, members)
local lags, rows = lags_of(members), {}

local function told(packed)
  if not packed then return false end
  local step, position, buckets, weights = unpack(cmsgpack.unpack(packed))
  local parts = {fmt(step), fmt(position)}
  for i, bucket in ipairs(buckets) do parts[2 * i + 1], parts[2 * i + 2] = fmt(bucket), fmt(weights[i]) end
  return table.concat(parts, ',')
end

for i, member in ipairs(members) do
  local ended = done[i] or J.complete
  if tops[i] then rows[#rows + 1] = {member, not ended and out(num(lags[i])), told(sketches[i])} end
end
return answer(J.waited, out(J.wait_weight), told(redis.call('HGET', K.delays, 'pool')),
  told(redis.call('HGET', K.delays, 'merged')), rows)
