-- @include parts/frame
-- Throttles: the rules that limit how often C moves.
local job, config = state.job, state.config
local throttle = {}

-- Return the watermark to which C may rise, at most the merged watermark; nil if C must not rise.
function throttle.candidate(merged)
  local kind = config.throttle.type
  if merged == nil or kind == 'none' then return merged end
  if kind == 'frame' then return frame.floor(merged) end
  local last = job.coalesced_watermark
  if last == nil or merged >= last + config.throttle.min_step_ms then return merged end
end

-- Return the watermark that completes an input with this max event time.
function throttle.end_after(max_event_time)
  if config.throttle.type == 'frame' then return frame.higher(max_event_time) end
  return math.min(max_event_time + 1, values.HIGHEST)
end

return throttle
