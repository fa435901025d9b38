-- Apply event times and watermarks immediately, without a batch.
--
-- args   max_substreams, token; members, max_event_times, watermarks, min_event_times (columns; min_event_times may be
--        absent); delayed, delays (columns: members, lists of alternating buckets and rows)
-- reply  applied
-- errors job_complete, event_time_missing, too_many_substreams
-- @include parts/reply
-- @include parts/observation
-- @include parts/tokens
local job, number = state.job, values.number

local function lowest_event_time(event_times, min_event_times)
  local lowest
  for i, event_time in ipairs(event_times) do
    local time = min_event_times and number(min_event_times[i]) or number(event_time)
    if time and (not lowest or time < lowest) then lowest = time end
  end
  return lowest
end

reply.load()
if job.is_complete then values.refuse('job_complete') end
observation.check_event_times(args.members, args.max_event_times, args.watermarks)
observation.check_room(args.members)
tokens.accept(args.token)
job.last_contact = job.now
local members, event_times, watermarks, min_event_times =
  observation.set_aside_future('', args.members, args.max_event_times, args.watermarks, args.min_event_times)
delays.measure('', args.delayed, args.delays, merge.merged_watermark())
local applied = observation.observe('', members, event_times, watermarks, job.observed_now)
evaluate.after_report(lowest_event_time(event_times, min_event_times))
return reply.finish({applied = applied})
