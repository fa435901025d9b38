-- Make substreams known before their first event, so that they hold the watermark from the start. The watermark does
-- not move.
--
-- args   max_substreams, query, members, max_event_times (columns; false: unknown), actor, reason
-- reply  applied
-- errors job_complete, too_many_substreams
-- @include parts/steps
-- @include parts/substreams
local job, number, query = state.job, values.number, args.query

-- Return the new members of a piece, and a report of the members that have no event time yet.
local function changes_of(piece)
  local members = piece.members
  local known, done, before = membership.known(members), bulk.zmscore(key.done, members), max_event_times.of(members)
  local new, unseen = {}, {members = {}, max_event_times = {}, watermarks = {}}
  for i, member in ipairs(members) do
    if not known[i] then new[#new + 1] = member end
    if number(piece.max_event_times[i]) and not before[i] and not done[i] and not job.is_complete then
      local at = #unseen.members + 1
      unseen.members[at], unseen.max_event_times[at] = member, piece.max_event_times[i]
    end
  end
  return new, unseen
end

local function declare(record, piece)
  local new, unseen = changes_of(piece)
  local observed = clock.observed_time(query)
  if #new > 0 then observation.add_substreams(query, new, observed) end
  unseen = observation.set_aside_future(unseen)
  local _, active = observation.observe(query, unseen, observed)
  journal.add(record.active, active)
  record.is_observed = record.is_observed or #unseen.members > 0
  local is_affected, affected = {}, {}
  for _, list in ipairs({new, unseen.members}) do
    for _, member in ipairs(list) do is_affected[member] = true end
  end
  for _, member in ipairs(piece.members) do
    if is_affected[member] then affected[#affected + 1] = member end
  end
  journal.add(record.affected, affected)
end

return steps.run({
  function(record)
    reply.load()
    record.affected, record.active = journal.summary(), journal.summary()
    observation.look_for_room(record, args.size or #args.members)
  end,
  function(record)
    return substreams.each(record, function(piece)
      local new, unseen = changes_of(piece)
      if #new > 0 and job.is_complete then values.refuse('job_complete') end
      observation.count_new(record, query, piece.members)
      observation.check(record, unseen)
    end)
  end,
  function(record)
    observation.refuse_if_full(record)
    if record.future then journal.write_substreams('future', query, record.future) end
  end,
  function(record)
    return substreams.each(record, function(piece) declare(record, piece) end)
  end,
  function(record)
    journal.write_substreams('active', query, record.active)
    if record.is_observed then
      job.evaluation_due = 1
      -- Computed watermarks assume that only evaluations sample a history.
      if state.config.has_clock_driven then job.evaluate_each = 1 end
    end
    if record.affected.count > 0 then journal.write_action('declare', query, record.affected) end
    return reply.finish({applied = record.affected.count > 0})
  end,
})
