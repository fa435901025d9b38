-- Make substreams known before their first event, so that they hold the watermark from the start. The watermark does
-- not move.
--
-- args   max_substreams, query, members, max_event_times (columns; false: unknown), actor, reason
-- reply  applied
-- errors job_complete, too_many_substreams
-- @include parts/reply
-- @include parts/substreams
local job, number = state.job, values.number
local members = args.members
reply.load()
local known, done = membership.known(members), bulk.zmscore(key.done, members)
local before = max_event_times.of(members)
local new, unseen, event_times = {}, {}, {}
for i, member in ipairs(members) do
  if not known[i] then new[#new + 1] = member end
  if number(args.max_event_times[i]) and not before[i] and not done[i] and not job.is_complete then
    unseen[#unseen + 1], event_times[#event_times + 1] = member, args.max_event_times[i]
  end
end
if #new > 0 and job.is_complete then values.refuse('job_complete') end
observation.check_room(new)
local observed = clock.observed_time(args.query)
if #new > 0 then observation.add_substreams(args.query, new, observed) end
unseen, event_times = observation.set_aside_future(args.query, unseen, event_times, {})
observation.observe(args.query, unseen, event_times, {}, observed)
local is_affected, affected = {}, {}
for _, list in ipairs({new, unseen}) do
  for _, member in ipairs(list) do is_affected[member] = true end
end
for _, member in ipairs(members) do
  if is_affected[member] then affected[#affected + 1] = member end
end
if #unseen > 0 then
  job.evaluation_due = 1
  -- Computed watermarks assume that only evaluations sample a history.
  if state.config.has_clock_driven then job.evaluate_each = 1 end
end
if #affected > 0 then journal.write_action('declare', args.query, affected) end
return reply.finish({applied = #affected > 0})
