-- Ends a hold.
--
-- KEYS  1 the job · 2 the jobs to sweep
-- ARGV  now · absent after · not after · hold · actor · reason
-- Reply ok, ... (parts/answer)
--       or error: job_not_found, job_deleted, hold_not_found <hold>
-- @include parts/answer
-- @include parts/end
local hold = arg()
local refused = load_job()
if refused then return refused end
if not redis.call('ZSCORE', K.holds, hold) then return problem('hold_not_found', hold) end
drop_hold(hold)
act('release', read_why(), nil, nil, 'hold', hold)
look()
return reply()
