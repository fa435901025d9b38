-- Reopen a complete job. The watermark does not go back.
--
-- args   actor, reason
-- reply  applied
-- @include parts/reply
local job = state.job
reply.load()
if not job.is_complete then return reply.finish({applied = false}) end
-- The job refused reports while it was complete, so this time does not count as silence.
job.unattended = job.unattended + (job.observed_now - job.completed)
job.is_complete, job.observed_now = nil, job.completed
journal.write_action('reopen')
-- While the job was complete, idle clocks may have advanced, but no substream became idle.
local has_left = idleness.time_out_queries()
for _, query in ipairs(redis.call('SMEMBERS', key.query_names)) do
  has_left = idleness.expire(query, queries.get(query).idle_clock) or has_left
end
evaluate.evaluate(has_left)
return reply.finish({applied = true})
