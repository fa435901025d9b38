-- @include clock
-- @include frames
-- The last steps of every command that may change a job: its next sweep, and its reply.
local lowest_of, above = values.lowest_of, values.above
local job, config = state.job, state.config
local schedule, reply = {}, {}

-- The next sweep of a job, at the time from which the job may change without new data. key.sweeps contains the jobs;
-- the score of a job is the time of its next sweep.

local function would_move_coalesced(watermark)
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
  local cells = job.retention and job.retention.cells or {}
  -- Without the newest cell, as at the start and after an eviction, the next evaluation records the value.
  local present = job.max_watermark
  if cells[#cells] then present = cells[1] end
  if would_move_coalesced(present) then return job.observed_now end
  if not job.retention then return nil end
  return timestamp_history.next_change(job.retention, would_move_coalesced)
end

-- Add the time at which a limit acts on the first member of a set to the changes. Add nothing if the limit is off.
local function add_first(changes, name, limit_ms)
  if not limit_ms then return end
  local member, time = lowest_of(name)
  if member and time < math.huge then changes[#changes + 1] = time + limit_ms end
end

-- Return the observed time from which an evaluation may change the job; nil if only new data can change it.
local function next_change()
  local changes = {frames.next_change()}
  if job.is_complete then return changes[1] end
  if job.evaluation_due then return job.observed_now end
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
  state.changes.before = {coalesced_watermark = job.coalesced_watermark, watermark = job.watermark,
    written_watermark = job.written_watermark}
end

local function record_movement()
  local before, passed = state.changes.before, state.changes.passed
  local kind, holder
  if job.watermark ~= before.watermark then
    kind, holder = 'emission', state.changes.held_by
    job.emissions = (job.emissions or 0) + 1
  elseif job.coalesced_watermark ~= before.coalesced_watermark then
    kind, holder = 'coalesced_watermark', state.changes.held_by
  elseif job.written_watermark ~= before.written_watermark then
    kind = 'written'
  else
    return
  end
  holder = holder or {}
  state.changes.movement = history.write(kind, 'coalesced_watermark', job.coalesced_watermark, 'watermark', job.watermark,
    'written_watermark', job.written_watermark, 'held_by', holder.reason,
    'query', holder.query, 'substream', holder.substream, 'batch_id', holder.batch_id, 'hold', holder.hold,
    'limits', #passed > 0 and cjson.encode(passed) or nil)
end

-- Record the movement of the watermark, schedule the next sweep, and save the job. Return the watermark of the job with
-- additional members.
function reply.finish(members)
  local unattended = state.changes.unattended
  if unattended then history.write('unattended', 'unattended_ms', unattended) end
  state.changes.written_held_by = emission.raise_written() or false
  state.changes.held_by = emission.held_by()
  record_movement()
  frames.advance()
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
  local writer = state.changes.written_held_by
  if writer == nil then writer = emission.written_held_by() end  -- a read, which does not finish
  found.written_watermark, found.written_held_by = job.written_watermark, writer or nil
  found.complete, found.held_by = job.is_complete and true, holder and {map = holder}
  return {map = found}
end

return schedule, reply
