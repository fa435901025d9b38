-- Evaluate a job because time has passed. Reads of a watermark also use this command, because watermarks may follow the
-- clock. Runs in steps (see parts/steps) if the evaluation must poll many substreams.
--
-- args   is_read (absent: false)
-- reply  unfinished (true: another sweep is due immediately)
-- @include parts/steps
local job = state.job
return steps.run({
  function(record)
    reply.load()
    record.polls, record.lowest = advancing.needs_steps(), math.huge
    if record.polls then evaluate.exclude() end
  end,
  function(record)
    if not record.polls then return end
    local remain = steps.each(record, advancing.sets(), function(members)
      record.lowest = math.min(record.lowest, advancing.poll(members, math.huge))
    end)
    if not remain then advancing.record_polls(record.lowest) end
    return remain
  end,
  function()
    if args.is_read then evaluate.sweep_for_read() else evaluate.sweep() end
    return reply.finish({unfinished = job.evaluation_due and true or nil})
  end,
})
