-- @include parts/queries
-- The clock of a job, which never goes back and detects outages. Observed time excludes outages.
local refuse = values.refuse
local job = state.job
local clock = {}

-- Return the processing time of this command: the time of the Redis server, unless a test sets one. Refuse a time after
-- args.latest_now_ms.
function clock.now()
  local now = args.now_ms
  if not now then
    local time = redis.call('TIME')
    now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
  end
  if args.latest_now_ms and now > args.latest_now_ms then refuse('clock_jumped', {now_ms = now}) end
  return now
end

-- Advance the clock of the job. changes.outage: the duration of an outage that this command has detected.
function clock.advance(now)
  local gap = now - job.now
  local is_outage = args.unattended_after_ms and gap > args.unattended_after_ms
  -- A job with a next change is swept regularly, so a longer gap shows that no coordinator ran.
  if is_outage and job.next_change then job.unattended, state.changes.outage = job.unattended + gap, gap end
  state.changes.previous_now = job.now
  job.now = math.max(now, job.now)
  job.observed_now = job.now - job.unattended
end

-- Read the live job of a command.
function clock.read()
  local found = state.read()
  if not found then refuse('job_not_found') end
  if found == 'deleted' then refuse('job_deleted') end
end

-- Load the live job of a command and advance its clock.
function clock.load()
  clock.read()
  clock.advance(clock.now())
end

-- Return the observed time of a query, and the duration of its outages. Reports without batches ('') use the observed
-- time and the outages of the job. A late report of an outage does not move the time back.
function clock.observed_time(query)
  if query == '' then return job.observed_now, job.unattended end
  local of = queries.get(query)
  return math.max(job.now - of.outage, of.idle_clock or -math.huge), of.outage
end

-- Record how long the current run of a query has waited for the coordinator.
function clock.add_outage(query, waited)
  query.outage = query.outage + math.max(0, waited - query.waited)
  query.waited = math.max(waited, query.waited)
end

-- Record that a query has processed all input up to a processing time.
function clock.observe_until(query, time)
  query.idle_clock = values.highest(time - query.outage, query.idle_clock)
end

return clock
