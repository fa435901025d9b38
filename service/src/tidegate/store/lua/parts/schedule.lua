-- @include parts/merge
-- The next sweep of a job, at the time from which the job may change without new data. key.sweeps contains the jobs;
-- the score of a job is the time of its next sweep.
local lowest_of, above = values.lowest_of, values.above
local job, config = state.job, state.config
local schedule = {}

local function would_be_emitted(watermark)
  return watermark and above(throttle.candidate(holds.cap(watermark)), job.coalesced_watermark)
end

local function clock_driven_changes(changes)
  local member, change = lowest_of(key.next_change)
  if member then changes[#changes + 1] = math.max(change or job.observed_now, job.observed_now) end
  if redis.call('EXISTS', key.advancing, key.idle_advancing) > 0 then changes[#changes + 1] = job.observed_now + 1 end
  -- The clock advances during an outage, so substreams that follow the clock are due after the outage.
  local after_outage = job.unattended_at_evaluation and job.unattended_at_evaluation ~= job.unattended
  if after_outage and redis.call('EXISTS', key.constant, key.advancing, key.idle_lagged) > 0 then
    changes[#changes + 1] = job.observed_now
  end
end

local function retention_change()
  if not job.retention then return would_be_emitted(job.max_watermark) and job.observed_now or nil end
  if would_be_emitted(job.retention.cells[1]) then return job.observed_now end
  return history.next_change(job.retention, would_be_emitted)
end

-- Add the time of the first member of a set, plus a limit, to the changes. Add nothing if the limit is off.
local function add_first(changes, name, limit)
  if not limit then return end
  local member, time = lowest_of(name)
  if member and time < math.huge then changes[#changes + 1] = time + limit end
end

-- Return the observed time from which an evaluation may change the job; nil if only new data can change it.
function schedule.next_change()
  if job.is_complete then return nil end
  if job.evaluation_due then return job.observed_now end
  local changes = {}
  add_first(changes, key.last_events(''), config.idle_timeout_ms)
  add_first(changes, key.last_seen, config.query_timeout_ms)
  add_first(changes, key.open_batches, config.max_batch_hold_ms)
  if not state.changes.is_plain then add_first(changes, key.hold_expiry, 0) end
  if config.has_clock_driven then clock_driven_changes(changes) end
  if config.max_retention_ms then changes[#changes + 1] = retention_change() end
  if #changes == 0 then return nil end
  return math.min(unpack(changes))
end

-- Make the job due for a sweep.
function schedule.sweep_now()
  if args.now_ms then return end
  redis.call('ZADD', key.sweeps, job.now, key.name)
  job.scheduled = job.now
end

-- Schedule the next sweep, at least args.sweep_interval_ms after this command. Otherwise, each coordinator would sweep a job
-- that follows the clock once per interval.
function schedule.update()
  job.next_change = schedule.next_change()
  if args.now_ms then return end
  if not job.next_change then
    if job.scheduled then redis.call('ZREM', key.sweeps, key.name) end
    job.scheduled = nil
    return
  end
  local due = math.max(job.next_change + job.unattended, job.now + (args.sweep_interval_ms or 0))
  if not job.scheduled or due < job.scheduled or job.scheduled <= job.now then
    redis.call('ZADD', key.sweeps, due, key.name)
    job.scheduled = due
  end
end

return schedule
