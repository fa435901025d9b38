-- @include evaluate
-- The first and the last step of every command that may change a job: its clock, its next sweep, and its reply.
local lowest_of, above, refuse = values.lowest_of, values.above, values.refuse
local job, config = state.job, state.config
local clock, schedule, reply = {}, {}, {}

-- The clock of a job, which never goes back. Observed time excludes the time in which no coordinator ran.
--
-- Each command shows that a coordinator runs, and so does the sweeper of each coordinator (commands.due). If neither comes
-- for more than args.unattended_after_ms, this time is unattended time of every job of the bucket.
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

-- The next sweep of a job, at the time from which the job may change without new data. key.sweeps contains the jobs;
-- the score of a job is the time of its next sweep.

local function would_be_emitted(watermark)
  return watermark and above(throttle.candidate(holds.cap(watermark)), job.coalesced_watermark)
end

local function follower_changes(changes)
  local member, change = lowest_of(key.next_change)
  if member then changes[#changes + 1] = math.max(change or job.observed_now, job.observed_now) end
  if redis.call('EXISTS', key.advancing, key.idle_advancing) > 0 then changes[#changes + 1] = job.observed_now + 1 end
  -- The clock advances in unattended time, so substreams that follow the clock are due afterwards.
  local was_unattended = job.unattended_at_evaluation and job.unattended_at_evaluation ~= job.unattended
  if was_unattended and redis.call('EXISTS', key.constant, key.advancing, key.idle_lagged) > 0 then
    changes[#changes + 1] = job.observed_now
  end
end

local function retention_change()
  if not job.retention then return would_be_emitted(job.max_watermark) and job.observed_now or nil end
  if would_be_emitted(job.retention.cells[1]) then return job.observed_now end
  return timestamp_history.next_change(job.retention, would_be_emitted)
end

-- Add the time at which a limit acts on the first member of a set to the changes. Add nothing if the limit is off.
local function add_first(changes, name, limit_ms)
  if not limit_ms then return end
  local member, time = lowest_of(name)
  if member and time < math.huge then changes[#changes + 1] = time + limit_ms end
end

-- Return the observed time from which an evaluation may change the job; nil if only new data can change it.
local function next_change()
  if job.is_complete then return nil end
  if job.evaluation_due then return job.observed_now end
  local changes = {}
  add_first(changes, key.last_events(''), config.idle_timeout_ms)
  add_first(changes, key.last_seen, config.query_timeout_ms)
  add_first(changes, key.open_batches, config.max_batch_hold_ms)
  if not state.changes.is_plain then add_first(changes, key.hold_expiry, 0) end
  if config.has_followers then follower_changes(changes) end
  if config.max_retention_ms then changes[#changes + 1] = retention_change() end
  if #changes == 0 then return nil end
  return math.min(unpack(changes))
end

function schedule.sweep_now()
  if args.unscheduled then return end
  redis.call('ZADD', key.sweeps, job.now, key.name)
  job.scheduled = job.now
end

-- Schedule the next sweep, at least args.sweep_interval_ms after this command. Otherwise, each coordinator would sweep a job
-- that follows the clock once per interval.
function schedule.update()
  job.next_change = next_change()
  if args.unscheduled then return end
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

-- The reply

function reply.load()
  clock.load()
  reply.remember()
end

-- Store the current watermarks, so that finish() can record a movement.
function reply.remember()
  state.changes.before = {coalesced_watermark = job.coalesced_watermark, watermark = job.watermark}
end

local function record_movement()
  local before, passed = state.changes.before, state.changes.passed
  if job.coalesced_watermark == before.coalesced_watermark and job.watermark == before.watermark then return end
  local kind = 'coalesced_watermark'
  if job.watermark ~= before.watermark then
    kind = 'emission'
    job.emissions = (job.emissions or 0) + 1
  end
  local holder = state.changes.held_by or {}
  history.write(kind, 'coalesced_watermark', job.coalesced_watermark, 'watermark', job.watermark, 'held_by', holder.reason,
    'query', holder.query, 'substream', holder.substream, 'batch_id', holder.batch_id, 'hold', holder.hold,
    'limits', #passed > 0 and cjson.encode(passed) or nil)
end

-- Record the movement of the watermark, schedule the next sweep, and save the job. Return the watermark of the job with
-- additional members.
function reply.finish(members)
  local unattended = state.changes.unattended
  if unattended then history.write('unattended', 'unattended_ms', unattended) end
  state.changes.held_by = emission.held_by()
  record_movement()
  timeline.record(state.changes.held_by)
  schedule.update()
  queries.save()
  state.save()
  if state.changes.is_recorded then history.announce() end
  return reply.watermark_state(members)
end

-- Return tidegate.domain.results.JobWatermark, with additional members.
function reply.watermark_state(members)
  local found = members or {}
  local holder = state.changes.held_by or emission.held_by()
  found.incarnation, found.state_epoch, found.now_ms = job.incarnation, job.state_epoch, job.now
  found.watermark, found.coalesced_watermark = job.watermark, job.coalesced_watermark
  found.complete, found.held_by = job.is_complete and true, holder and {map = holder}
  return {map = found}
end

return clock, schedule, reply
