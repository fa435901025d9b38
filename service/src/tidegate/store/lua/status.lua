-- The whole status of a job, apart from its tables. Changes nothing.
--
-- KEYS  1 the job
-- ARGV  now · absent after · not after
-- Reply ok, ... (parts/answer), config (JSON), revision, created, top, lead, live, idle, done, all idle (1/0),
--       on_time, updated, late, null_event_time, future, future reported, tokens ignored,
--       emissions, throttled, last contact, open batches, limits (name, times, ...), holds (each name, at most, expires, reason), missing queries
--       or error: job_not_found, job_deleted
-- @include parts/answer
local refused = load_job()
if refused then return refused end
local missing = redis.call('SMEMBERS', K.missing)
local parked, done = redis.call('ZCARD', K.parked), redis.call('ZCARD', K.done)
local known = redis.call('ZCARD', K.tops) - #missing
local live = redis.call('ZCARD', K.live) + redis.call('ZCARD', K.still) + redis.call('ZCARD', K.drift)
local idle = parked - done
for _, query in ipairs(missing) do
  if redis.call('ZSCORE', K.live, query .. '/') then live = live - 1 else idle = idle - 1 end
end
if J.complete then live, idle, done = 0, 0, known end
local fields = redis.call('HMGET', K.job, 'config', 'revision', 'created', 'on_time', 'updated', 'late',
  'null_event_time', 'future', 'future_rows', 'tokens_ignored')
local limits = {}
for _, limit in ipairs({'idle_timeout_ms', 'query_timeout_ms', 'max_retention_ms', 'max_batch_hold_ms', 'max_delay_ms',
  'max_lull_ms', 'wall_clock_lag_ms'}) do
  local times = redis.call('HGET', K.job, 'limit ' .. limit)
  if times then limits[#limits + 1], limits[#limits + 2] = limit, times end
end
return answer(fields[1], fields[2], fields[3], out(J.top), out(J.lead), fmt(live), fmt(idle), fmt(done),
  J.all_idle and '1' or '0', fields[4], fields[5], fields[6], fields[7], fields[8], fields[9], fields[10], out(J.emissions),
  out(J.throttled), out(J.heard), fmt(redis.call('ZCARD', K.begun)), limits, all_holds(), missing)
