-- Apply event times and watermarks immediately, without a batch.
--
-- args   max_substreams; tokens (of the clients that sent the reports); members, max_event_times, watermarks,
--        min_event_times (columns); delayed, delays (columns: members, lists of alternating buckets and rows; may be
--        absent)
-- reply  without_effect (members)
-- errors job_complete, event_time_missing, too_many_substreams
-- @include parts/reply
-- @include parts/observation
-- @include parts/tokens
local job, config, number = state.job, state.config, values.number

-- Return the lowest event time, which limits watermarks that follow the clock; infinite if there are no such watermarks.
local function lowest_event_time(event_times, min_event_times)
  if not config.has_clock_driven and #event_times > 0 then return math.huge end
  local lowest
  for i, event_time in ipairs(event_times) do
    local time = number(event_time) and (number(min_event_times[i]) or number(event_time))
    if time and (not lowest or time < lowest) then lowest = time end
  end
  return lowest
end

local function missing_from(names, members)
  if #names == #members then return {} end
  local has_effect, missing = {}, {}
  for _, name in ipairs(names) do has_effect[name] = true end
  for _, member in ipairs(members) do
    if not has_effect[member] then missing[#missing + 1] = member end
  end
  return missing
end

reply.load()
state.look_for_rare_sets()
if job.is_complete then values.refuse('job_complete') end
observation.check_event_times(args.members, args.max_event_times, args.watermarks)
observation.check_room(args.members)
for _, token in ipairs(args.tokens) do tokens.accept(token) end
job.last_contact = job.now
local members, event_times, watermarks, min_event_times =
  observation.set_aside_future('', args.members, args.max_event_times, args.watermarks, args.min_event_times)
if args.delayed then delays.measure('', args.delayed, args.delays, merge.merged_watermark()) end
local names = observation.observe('', members, event_times, watermarks, job.observed_now)
evaluate.after_report(lowest_event_time(event_times, min_event_times))
return reply.finish({without_effect = missing_from(names, args.members)})
