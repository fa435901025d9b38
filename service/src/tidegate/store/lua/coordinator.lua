-- @include steps
-- Calls that coordinators make for themselves: take jobs that are due, sweep them, and confirm writes.
local job = state.job

-- Due: record that a coordinator serves the jobs of a bucket, and take jobs that are due for a sweep.
--
-- A taken job is due again after args.lease_ms, unless its sweep schedules it. Coordinators therefore sweep different
-- jobs, and another one sweeps the jobs of a coordinator that stops.
-- args   by_ms (processing time until which jobs are due), most (number of jobs), lease_ms
-- reply  jobs (the taken jobs, earliest first)
function commands.due()
  local now = clock.now()
  clock.attend(now)
  local jobs = redis.call('ZRANGE', key.sweeps, '-inf', args.by_ms, 'BYSCORE', 'LIMIT', 0, args.most)
  for _, name in ipairs(jobs) do redis.call('ZADD', key.sweeps, now + args.lease_ms, name) end
  return {map = {jobs = jobs}}
end

-- Sweep: evaluate a job because time has passed. Reads of a watermark also use this command, because watermarks may follow
-- the clock. Runs in steps if the evaluation must poll many substreams.
-- args   is_read (absent: false)
-- reply  unfinished (true: another sweep is due immediately)
function commands.sweep()
  return steps.run({
    function(progress)
      reply.load()
      progress.polls, progress.lowest = followers.needs_steps(), math.huge
      if progress.polls then evaluate.exclude() end
    end,
    function(progress)
      if not progress.polls then return end
      local remain = steps.each(progress, followers.sets(), function(members)
        progress.lowest = math.min(progress.lowest, followers.poll(members, math.huge))
      end)
      if not remain then followers.record_polls(progress.lowest) end
      return remain
    end,
    function()
      if args.is_read then evaluate.sweep_for_read() else evaluate.sweep() end
      return reply.finish({unfinished = job.evaluation_due and true or nil})
    end,
  })
end

-- Confirm: write a constant, so that a WAIT after this call waits for all earlier writes to the server.
function commands.confirm()
  redis.call('HSET', key.attendance, 'confirmed', 1)
  return {map = {}}
end
