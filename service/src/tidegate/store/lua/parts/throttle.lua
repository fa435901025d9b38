-- @include parts/frame
-- Throttles: how often C moves.
local job, config = state.job, state.config
local throttle = {}

-- Return the watermark to emit instead of the merged one; nil for none.
function throttle.candidate(merged)
  local kind = config.throttle.type
  if merged == nil or kind == 'none' then return merged end
  if kind == 'frame' then return frame.floor(merged) end
  local last = job.coalesced_watermark
  if last == nil or merged >= last + config.throttle.min_step then return merged end
end

-- Return the step between window boundaries; 0 without frames.
function throttle.slide()
  return config.throttle.type == 'frame' and config.throttle.slide or 0
end

-- Return the watermark that completes an input with this max event time.
function throttle.end_after(max_event_time)
  if config.throttle.type == 'frame' then return frame.higher(max_event_time) end
  return math.min(max_event_time + 1, values.HIGHEST)
end

return throttle
