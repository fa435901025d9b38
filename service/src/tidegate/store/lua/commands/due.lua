-- Record that a coordinator serves the jobs of a bucket, and take jobs that are due for a sweep.
--
-- A taken job is due again after args.lease_ms, unless its sweep schedules it. Coordinators therefore sweep different
-- jobs, and another one sweeps the jobs of a coordinator that stops.
--
-- args   by_ms (processing time until which jobs are due), limit, lease_ms
-- reply  jobs (the taken jobs, earliest first)
-- @include parts/clock
local now = clock.now()
clock.attend(now)
local jobs = redis.call('ZRANGE', key.sweeps, '-inf', args.by_ms, 'BYSCORE', 'LIMIT', 0, args.limit)
for _, job in ipairs(jobs) do redis.call('ZADD', key.sweeps, now + args.lease_ms, job) end
return {map = {jobs = jobs}}
