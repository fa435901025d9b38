-- Whether time alone can change anything in a job: a substream that reports without batches may fall idle. Changes
-- nothing.
--
-- KEYS  1 the job
-- ARGV  now
-- Reply ok, driven (1/0)
--       or error: job_not_found, job_deleted
-- @include parts/job
local refused = load_job()
if refused then return refused end
local driven = J.idle_timeout and not J.complete and redis.call('EXISTS', K.expiry('')) == 1
return {'ok', driven and '1' or '0'}
