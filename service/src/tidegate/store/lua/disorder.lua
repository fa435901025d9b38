-- What is known of how far rows come out of order. Changes nothing.
--
-- KEYS  1 the job
-- ARGV  now · absent after · not after · members (column); those not known are passed over
-- Reply ok, ... (parts/answer), waited, over how much, the sketch of all delays, that behind the merged watermark (see parts/delays; nil:
--       none), rows: each member, lag in force, its sketch
--       or error: job_not_found, job_deleted
-- @include parts/answer
local members = column()
local refused = load_job()
if refused then return refused end
local tops, done, sketches = zmscore(K.tops, members), zmscore(K.done, members), hmget(K.delays, members)
local lags, rows = lags_of(members), {}
for i, member in ipairs(members) do
  local ended = done[i] or J.complete
  if tops[i] then rows[#rows + 1] = {member, not ended and out(num(lags[i])), sketches[i]} end
end
return answer(J.waited, out(J.wait_weight), redis.call('HGET', K.delays, 'pool'), redis.call('HGET', K.delays, 'merged'), rows)
