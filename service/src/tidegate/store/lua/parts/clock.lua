-- @include parts/queries
-- The clock of a job, which never goes back. Observed time excludes outages: the time in which no coordinator ran.
--
-- Each command shows that a coordinator runs, and so does the sweeper of each coordinator (commands/due). A gap of more than
-- args.unattended_after_ms between two of them is an outage for every job of the bucket.
local refuse = values.refuse
local job = state.job
local clock = {}
local ATTENDED_EACH_MS = 250  -- so that most commands do not write it

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

-- Record that a coordinator runs, and return the total duration of the outages of the bucket. A read records nothing.
function clock.attend(now)
  local found = redis.call('HMGET', key.attendance, 'until', 'unattended')
  local attended, total = tonumber(found[1] or nil), tonumber(found[2] or 0)
  if not args.unattended_after_ms then return total end
  local gap = attended and now - attended or math.huge
  if attended and gap > args.unattended_after_ms then
    total = total + gap
    redis.call('HSET', key.attendance, 'until', now, 'unattended', total)
  elseif gap >= ATTENDED_EACH_MS then
    redis.call('HSET', key.attendance, 'until', now)
  end
  return total
end

-- Return the duration of the outages since the last command of the job.
local function outage_until(now)
  if args.now_ms then  -- a test, whose jobs have their own times: a gap between two commands of a job is an outage
    local gap = now - job.now
    local is_outage = args.unattended_after_ms and gap > args.unattended_after_ms and job.next_change
    return is_outage and gap or 0
  end
  local total = clock.attend(now)
  local outage = math.max(0, math.min(total - (job.outages or total), now - job.now))
  job.outages = total
  return outage
end

-- Advance the clock of the job. changes.outage: the duration of the outages that this command has detected.
function clock.advance(now)
  state.changes.clock = {now = job.now, observed_now = job.observed_now, unattended = job.unattended, outages = job.outages}
  local outage = outage_until(now)
  if outage > 0 then job.unattended, state.changes.outage = job.unattended + outage, outage end
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
