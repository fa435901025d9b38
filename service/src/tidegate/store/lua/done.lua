-- Marks substreams as ended: they never hold the watermark again. All or none.
--
-- KEYS  1 the job · 2 the jobs to sweep
-- ARGV  now · absent after · not after · query ('' for reports without batches) · members (column) · actor · reason
-- Reply ok, ... (parts/answer), applied (0: all were done before)
--       or error: job_not_found, job_deleted, substream_not_found <query> <members>
-- @include parts/answer
-- @include parts/end
local query, members = arg(), column()
local refused = load_job()
if refused then return refused end
refused = check_known(query, members)
if refused then return refused end
local new = mark_done(query, members)
if #new > 0 then act('done', read_why(), query, new) end
look(nil, false, true)
return reply(#new > 0 and '1' or '0')
