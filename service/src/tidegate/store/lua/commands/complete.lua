-- End the input of a job: all substreams become done. Regardless of the throttle, C moves to the end of the last
-- frame that has events or begins before up_to. If the job is already complete, C moves only if up_to is above C.
--
-- args   up_to (absent: up to the last event), actor, reason
-- reply  applied
-- errors batch_open, hold_active
-- @include parts/reply
local job, above, up_to = state.job, values.above, args.up_to
reply.load()
if job.is_complete and not (up_to and above(up_to, job.coalesced_watermark)) then return reply.finish({applied = false}) end
local open = redis.call('ZRANGE', key.open_batches, 0, -1)
if #open > 0 then
  table.sort(open, values.sorts_before)
  values.refuse('batch_open', {query = open[1], batch_id = queries.get(open[1]).latest})
end
for _, hold in ipairs(redis.call('ZRANGE', key.holds, 0, -1)) do
  local expires = values.number(redis.call('ZSCORE', key.hold_expiry, hold))
  if not expires or expires > job.observed_now then
    values.refuse('hold_active', {hold = hold, at_most = tonumber(redis.call('ZSCORE', key.holds, hold))})
  end
end
emission.advance(throttle.candidate(job.max_watermark))
local last = job.max_event_time
if up_to and above(up_to - 1, last) then last = math.max(up_to - 1, -values.HIGHEST) end
if last then emission.advance(throttle.end_after(last)) end
emission.raise_watermark(job.coalesced_watermark)
if not job.is_complete then job.is_complete, job.completed = 1, job.observed_now end
journal.write_action('complete', nil, nil, 'up_to', up_to)
return reply.finish({applied = true})
