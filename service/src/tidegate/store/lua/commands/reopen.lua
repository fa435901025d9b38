-- Undo the end of input, but not the watermark.
--
-- args   actor, reason
-- reply  applied
-- @include parts/reply
local job = state.job
reply.load()
if not job.is_complete then return reply.finish({applied = false}) end
-- Reports were refused while the job was complete, so that time does not count as silence.
job.unattended = job.unattended + (job.observed_now - job.completed)
job.is_complete, job.observed_now = nil, job.completed
journal.write_action('reopen')
-- No substream became idle while the job was complete, though clocks may have moved.
local has_left = idleness.time_out_queries()
for _, query in ipairs(redis.call('SMEMBERS', key.query_names)) do
  has_left = idleness.expire(query, values.number(redis.call('HGET', key.query(query), 'idle_clock'))) or has_left
end
evaluate.evaluate(has_left)
return reply.finish({applied = true})
