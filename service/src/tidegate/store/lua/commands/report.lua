-- Apply event times and watermarks immediately, without a batch. A large report runs in steps (see parts/steps).
--
-- args   max_substreams; tokens (of the clients that sent the reports); members, max_event_times, watermarks,
--        min_event_times (columns); delayed, delays (columns: members, lists of alternating buckets and rows; may be
--        absent); or stored pieces of these columns: stored, size (number of members), members and delayed (ranges)
-- reply  applied; without_effect (members; absent if the columns were stored)
-- errors job_complete, event_time_missing, too_many_substreams
-- @include parts/steps
-- @include parts/observation
-- @include parts/tokens
local job, config, number = state.job, state.config, values.number

-- Return the lowest event time, which limits watermarks that follow the clock; infinite if there are no such watermarks.
local function lowest_event_time(report)
  local event_times, min_event_times = report.max_event_times, report.min_event_times
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

local function each(column)
  return function(record, visit) return steps.pieces(record, args.stored and args[column], visit) end
end

local measure, learn = delays.phases('', each('delayed'), merge.merged_watermark)

return steps.run({
  function(record)
    reply.load()
    if not args.stored then state.look_for_rare_sets() end
    if job.is_complete then values.refuse('job_complete') end
    observation.look_for_room(record, args.size or #args.members)
  end,
  function(record)
    return steps.check(record, args.stored and args.members, function(piece)
      observation.count_new(record, '', piece.members)
      return observation.check(record, piece)
    end, observation.refuse_watermarks)
  end,
  function(record)
    observation.refuse_if_full(record)
    for _, token in ipairs(args.tokens) do tokens.accept(token) end
    job.last_contact = job.now
    if record.future then journal.write_substreams('future', '', record.future) end
  end,
  measure,
  learn,
  function(record)
    record.active = record.active or journal.summary()
    return each('members')(record, function(piece)
      local kept = observation.set_aside_future(piece)
      local names, active = observation.observe('', kept, job.observed_now, piece.members)
      journal.add(record.active, active)
      record.applied = record.applied or #names > 0
      record.lowest = math.min(lowest_event_time(kept) or math.huge, record.lowest or math.huge)
      if not args.stored then record.without_effect = missing_from(names, piece.members) end
    end)
  end,
  function(record)
    journal.write_substreams('active', '', record.active)
    evaluate.after_report(record.lowest)
    return reply.finish({applied = record.applied, without_effect = record.without_effect})
  end,
})
