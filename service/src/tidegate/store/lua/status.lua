-- The whole status of a job, apart from its tables. Changes nothing.
--
-- KEYS  1 the job
-- ARGV  now
-- Reply ok, ... (parts/answer), config (JSON), revision, created, top, lead, live, idle, done,
--       on_time, updated, late, null_event_time, future, tokens_ignored
--       or error: job_not_found, job_deleted
-- @include parts/answer
local refused = load_job()
if refused then return refused end
local _, top = highest_of(K.tops)
local live, parked, done = redis.call('ZCARD', K.live), redis.call('ZCARD', K.parked), redis.call('ZCARD', K.done)
local fields = redis.call('HMGET', K.job, 'config', 'revision', 'created', 'on_time', 'updated', 'late',
  'null_event_time', 'future', 'tokens_ignored')
return answer(fields[1], fields[2], fields[3], out(top), out(J.lead), fmt(live), fmt(parked - done), fmt(done),
  fields[4], fields[5], fields[6], fields[7], fields[8], fields[9])
