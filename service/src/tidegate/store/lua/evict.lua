-- Forgets substreams, as if they had never been; what they led to goes on counting. Those not known are passed over.
--
-- KEYS  1 the job · 2 the jobs to sweep
-- ARGV  now · absent after · not after · query ('' for reports without batches) · members (column) · actor · reason
-- Reply ok, ... (parts/answer), applied (0: none of them was known)
--       or error: job_not_found, job_deleted
-- @include parts/answer
-- @include parts/end
local query, members = arg(), column()
local refused = load_job()
if refused then return refused end
local tops, new = zmscore(K.tops, members), {}
for i, member in ipairs(members) do
  if tops[i] then new[#new + 1] = member end
end
forget(query, new)
if #new > 0 then act('evict', read_why(), query, new) end
look(nil, false, true)
return reply(#new > 0 and '1' or '0')
