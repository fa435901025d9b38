-- Keep C, and therefore W, at or below a value. A repeated hold expires at the later of the two times.
--
-- args   hold, at_most, duration_ms (absent: until the hold is released), actor, reason
-- reply  applied
-- errors job_complete, hold_exists
-- @include parts/reply
local job, hold, duration = state.job, args.hold, args.duration_ms
reply.load()
if job.is_complete then values.refuse('job_complete') end
local present = values.number(redis.call('ZSCORE', key.holds, hold))
local expires = values.number(redis.call('ZSCORE', key.hold_expiry, hold))
local in_force = present and (not expires or expires > job.observed_now)
if in_force and present ~= args.at_most then values.refuse('hold_exists', {hold = hold, at_most = present}) end
if in_force and not (expires and (not duration or job.observed_now + duration > expires)) then
  return reply.finish({applied = false})
end
if present and not in_force then job.evaluation_due = 1 end  -- the expired hold no longer limits C
holds.remove(hold)
redis.call('ZADD', key.holds, args.at_most, hold)
if duration then redis.call('ZADD', key.hold_expiry, job.observed_now + duration, hold) end
redis.call('HSET', key.hold_reasons, hold, args.reason)
journal.write_action('hold', nil, nil, 'hold', hold, 'at_most', args.at_most)
return reply.finish({applied = true})
