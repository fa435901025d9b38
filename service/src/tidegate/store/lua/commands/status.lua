-- Read the status of a job.
--
-- reply  config (JSON), revision, created_ms, and the fields of tidegate.domain.results.JobSummary
-- @include parts/emission
-- @include parts/membership
local job, number = state.job, values.number
clock.load()
local missing = redis.call('SMEMBERS', key.missing_queries)
local done = redis.call('ZCARD', key.done)
local known = membership.count() - #missing
local active = membership.count_active()
local idle = membership.count() - active - done
for _, query in ipairs(missing) do
  if redis.call('ZSCORE', key.active, query .. '/') then active = active - 1 else idle = idle - 1 end
end
if job.is_complete then active, idle, done = 0, 0, known end

local found = {revision = job.revision, max_event_time = job.max_event_time, max_watermark = job.max_watermark,
  active = active, idle = idle, done = done, all_idle = job.all_idle, emissions = job.emissions, throttled = job.throttled,
  last_contact_ms = job.last_contact, open_batches = redis.call('ZCARD', key.open_batches), holds = holds.in_order(),
  missing_queries = missing}
local FIELDS = {'config', 'created', 'on_time', 'updated', 'late', 'null_event_time', 'future', 'future_rows',
  'tokens_ignored'}
for i, value in ipairs(redis.call('HMGET', key.job, unpack(FIELDS))) do found[FIELDS[i]] = value or nil end
found.limits = {}
for _, limit in ipairs(constants.LIMITS) do
  found.limits[limit] = number(redis.call('HGET', key.job, 'limit ' .. limit))
end
found.limits = {map = found.limits}
return emission.watermark_state(found)
