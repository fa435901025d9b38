-- @include job
-- The clock of a job, which never goes back. Observed time excludes the time in which no coordinator ran.
--
-- Each command shows that a coordinator runs, and so does the sweeper of each coordinator (commands.due). If neither comes
-- for more than args.unattended_after_ms, this time is unattended time of every job of the bucket.
local refuse, job = values.refuse, state.job
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

-- Record that a coordinator runs, and return the total unattended time of the bucket. A read records nothing.
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

-- Return the unattended time since the last command of the job.
local function unattended_until(now)
  if args.now_ms then  -- a test, whose jobs have their own times: it is a gap between two commands of the job
    local gap = now - job.now
    local is_unattended = args.unattended_after_ms and gap > args.unattended_after_ms and job.next_change
    return is_unattended and gap or 0
  end
  local total = clock.attend(now)
  local unattended = math.max(0, math.min(total - (job.outages or total), now - job.now))
  job.outages = total
  return unattended
end

-- Advance the clock of the job. changes.unattended: the unattended time that this command has detected.
function clock.advance(now)
  state.changes.clock = {now = job.now, observed_now = job.observed_now, unattended = job.unattended, outages = job.outages}
  local unattended = unattended_until(now)
  if unattended > 0 then job.unattended, state.changes.unattended = job.unattended + unattended, unattended end
  state.changes.previous_now = job.now
  job.now = math.max(now, job.now)
  job.observed_now = job.now - job.unattended
end

function clock.read()
  local found = state.read()
  if not found then refuse('job_not_found') end
  if found == 'deleted' then refuse('job_deleted') end
end

function clock.load()
  clock.read()
  clock.advance(clock.now())
end

return clock
