-- A new incarnation of a job under the same rules: all else is forgotten, the watermark too. The record stays.
--
-- KEYS  1 the job · 2 the jobs to sweep
-- ARGV  now · absent after · not after · fresh epoch · actor · reason
-- Reply ok, ... (parts/answer)
--       or error: job_not_found, job_deleted
-- @include parts/answer
-- @include parts/wipe
-- @include parts/end
local epoch = arg()
local refused = load_job()
if refused then return refused end
wipe()
local absent = J.absent
fresh_job(J.incarnation + 1, epoch, J.now)
J.absent = absent
act('reset', read_why())
expect()
return reply()
