-- Makes substreams known before their first event, so that they hold the watermark back from the start.
--
-- KEYS  1 the job
-- ARGV  now · query ('' for reports without batches) · members (column)
-- Reply ok, ... (parts/answer), applied (1: at least one was new)
--       or error: job_not_found, job_deleted, job_complete
-- @include parts/answer
-- @include parts/look
local query, members = arg(), column()
local refused = load_job()
if refused then return refused end
local observed = observed_by(query)
local known, live, expiry = zmscore(K.tops, members), {}, {}
for i, member in ipairs(members) do
  if not known[i] then
    live[#live + 1], live[#live + 2] = '-inf', member
    expiry[#expiry + 1], expiry[#expiry + 2] = fmt(observed), member
  end
end
if #live > 0 then
  if J.complete then return problem('job_complete') end
  if query ~= '' then redis.call('SADD', K.owners, query) end
  zadd(K.tops, nil, live)
  zadd(K.live, nil, live)
  zadd(K.expiry(query), nil, expiry)
end
look()
save_job()
return answer(#live > 0 and '1' or '0')
