-- Deletes a job and all it held; a tombstone stays, so that reports are told, and the next incarnation is a new one.
--
-- KEYS  1 the job · 2 the jobs to sweep · 3 all jobs
-- ARGV  now · absent after · not after · expected revision ('' : any)
-- Reply ok, or error: job_not_found (also where it was never created), revision_mismatch <current>. Deleting twice is ok.
-- @include parts/journal
-- @include parts/wipe
local expected = arg()
local refused = load_job()
if refused and refused[2] ~= 'job_deleted' then return refused end
if refused then return {'ok'} end
local current = redis.call('HGET', K.job, 'revision')
if expected ~= '' and current ~= expected then return problem('revision_mismatch', current) end
wipe()
redis.call('DEL', K.job, K.log)
redis.call('HSET', K.job, 'state', 'deleted', 'incarnation', fmt(J.incarnation), 'deleted', fmt(J.now))
redis.call('ZREM', K.sweeps, K.name)
redis.call('SREM', K.jobs, K.name)
announce()
return {'ok'}
