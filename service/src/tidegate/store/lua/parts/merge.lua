-- @include parts/emission
-- Merging: compute C from the watermarks of the substreams. See tidegate.domain.merge.
local highest, above = values.highest, values.above
local job, config = state.job, state.config
local merge = {}

-- Return the value that C would have without the throttle.
function merge.merged_watermark()
  return highest(job.merged_highest, job.coalesced_watermark)
end

-- Return the max watermark of max_retention_ms ago; nil if retention does not act.
local function retained(has_risen, is_sweep)
  if not config.max_retention_ms or not (is_sweep or has_risen) then return nil end
  local h = job.retention or history.start(config.max_retention_ms)
  local sampled = history.sample(h, job.observed_now, job.max_watermark)
  job.retention = h
  return is_sweep and sampled or nil
end

-- Merge the active substreams, and move C. cap: limit on watermarks that follow the clock. is_sweep: retention may
-- act. has_left: see advancing.evaluate. Return whether retention moved C.
function merge.merge(cap, is_sweep, has_left)
  local before, max_before = job.coalesced_watermark, job.max_watermark
  local lowest, is_unfinished = advancing.evaluate(cap or math.huge, has_left)
  job.evaluation_due = (is_unfinished or state.changes.is_unfinished) and 1 or nil
  local first, flat = values.lowest_of(key.active)
  if first then
    lowest = math.min(lowest, flat or -math.huge)
    local _, last = values.highest_of(key.active)
    job.max_watermark = highest(last, job.max_watermark)
  end
  local merged
  job.all_idle = lowest == math.huge and 1 or nil
  if job.all_idle then
    merged = job.max_watermark
  elseif lowest > -math.huge then
    merged = lowest
  end
  local offered = holds.cap(highest(retained(above(job.max_watermark, max_before), is_sweep), merged))
  emission.advance(throttle.candidate(offered))
  if above(offered, job.merged_highest) then
    job.merged_highest = offered
    if above(offered, before) and job.coalesced_watermark == before then job.throttled = (job.throttled or 0) + 1 end
  end
  return above(job.coalesced_watermark, before) and above(job.coalesced_watermark, merged)
end

return merge
