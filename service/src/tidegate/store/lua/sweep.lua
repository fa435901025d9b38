-- What time alone has brought about; also the plain read of a job's watermark, which must not lag behind time.
--
-- KEYS  1 the job · 2 the jobs to sweep
-- ARGV  now · absent after · not after
-- Reply ok, ... (parts/answer)
--       or error: job_not_found, job_deleted
-- @include parts/answer
local refused = load_job()
if refused then return refused end
look(nil, true)
return reply()
