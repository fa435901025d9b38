-- @include parts/evaluate
-- @include parts/schedule
-- The end of every command that may have changed something.
local job = state.job
local reply = {}

local function record_movement()
  local before = reply.before
  if job.coalesced_watermark == before.coalesced_watermark and job.watermark == before.watermark then return end
  local kind = 'coalesced_watermark'
  if job.watermark ~= before.watermark then
    kind = 'emission'
    job.emissions = (job.emissions or 0) + 1
  end
  local holder = job.held_by or {}
  journal.write(kind, 'coalesced_watermark', job.coalesced_watermark, 'watermark', job.watermark, 'held_by', holder.reason,
    'query', holder.query, 'substream', holder.substream, 'batch_id', holder.batch_id, 'hold', holder.hold,
    'limits', #evaluate.passed > 0 and cjson.encode(evaluate.passed) or nil)
end

-- Load the job of a command.
function reply.load()
  clock.load()
  reply.remember()
end

-- Remember the watermarks; finish() records a movement since.
function reply.remember()
  reply.before = {coalesced_watermark = job.coalesced_watermark, watermark = job.watermark}
end

-- Record what moved, schedule the next sweep, save the job, and return its watermark with further members.
function reply.finish(members)
  if job.outage then journal.write('unattended', 'unattended_ms', job.outage) end
  job.held_by = emission.held_by()
  record_movement()
  schedule.update()
  state.save()
  if journal.is_written then journal.announce() end
  return emission.watermark_state(members)
end

return reply
