-- @include parts/evaluate
-- @include parts/schedule
-- @include parts/timeline
-- The first and the last step of every command that may change a job.
local job = state.job
local reply = {}

local function record_movement()
  local before, passed = state.changes.before, state.changes.passed
  if job.coalesced_watermark == before.coalesced_watermark and job.watermark == before.watermark then return end
  local kind = 'coalesced_watermark'
  if job.watermark ~= before.watermark then
    kind = 'emission'
    job.emissions = (job.emissions or 0) + 1
  end
  local holder = state.changes.held_by or {}
  journal.write(kind, 'coalesced_watermark', job.coalesced_watermark, 'watermark', job.watermark, 'held_by', holder.reason,
    'query', holder.query, 'substream', holder.substream, 'batch_id', holder.batch_id, 'hold', holder.hold,
    'limits', #passed > 0 and cjson.encode(passed) or nil)
end

-- Load the job of a command.
function reply.load()
  clock.load()
  reply.remember()
end

-- Store the current watermarks, so that finish() can record a movement.
function reply.remember()
  state.changes.before = {coalesced_watermark = job.coalesced_watermark, watermark = job.watermark}
end

-- Record the movement of the watermark, schedule the next sweep, and save the job. Return the watermark of the job with
-- additional members.
function reply.finish(members)
  local outage = state.changes.outage
  if outage then journal.write('unattended', 'unattended_ms', outage) end
  state.changes.held_by = emission.held_by()
  record_movement()
  timeline.record(state.changes.held_by)
  schedule.update()
  queries.save()
  state.save()
  if state.changes.is_recorded then journal.announce() end
  return emission.watermark_state(members)
end

return reply
