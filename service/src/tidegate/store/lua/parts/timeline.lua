-- @include parts/state
-- The timeline of a job: its watermark and holder at regular processing times. See tidegate.domain.timeline.
local text = values.text
local job = state.job
local INTERVALS, KEPT = constants.SAMPLE_INTERVALS_MS, constants.SAMPLES_KEPT
local SHORTEST = INTERVALS[1]  -- divides the others
local timeline = {}

local function start_of(interval, time)
  return time - values.modulo(time, interval)
end

-- Append a sample for each interval that has none yet. After its creation, an empty job has no samples. A sample is
-- '<time> <watermark> <reason> <query> <name>'.
function timeline.record(holder)
  local before = state.changes.previous_now
  if before and start_of(SHORTEST, before) == start_of(SHORTEST, job.now) then return end
  if before and not (holder or job.watermark) then return end
  holder = holder or {}
  local sample = table.concat({text(job.now), text(job.watermark), holder.reason or '', holder.query or '',
    holder.substream or holder.hold or ''}, ' ')
  for i, interval in ipairs(INTERVALS) do
    if not before or start_of(interval, before) ~= start_of(interval, job.now) then
      redis.call('RPUSH', key.timeline(interval), sample)
      redis.call('LTRIM', key.timeline(interval), -KEPT[i], -1)
    end
  end
end

return timeline
