-- Marks substreams as ended: they never hold the watermark again. All or none.
--
-- KEYS  1 the job
-- ARGV  now · query ('' for reports without batches) · members (column)
-- Reply ok, ... (parts/answer), applied (0: all were done before)
--       or error: job_not_found, job_deleted, substream_not_found <query> <members>
-- @include parts/answer
-- @include parts/end
local query, members = arg(), column()
local refused = load_job()
if refused then return refused end
local tops, unknown = zmscore(K.tops, members), {}
for i, member in ipairs(members) do
  if not tops[i] then unknown[#unknown + 1] = member end
end
if #unknown > 0 then return problem('substream_not_found', query, unknown) end
local applied = mark_done(query, members)
look()
save_job()
return answer(applied and '1' or '0')
