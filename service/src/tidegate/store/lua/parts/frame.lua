-- @include parts/state
-- Frame boundaries, exact on doubles.
local config = state.config
local frame = {}

local function past_boundary(time)
  local slide = config.throttle.slide
  return values.modulo(values.modulo(time, slide) - config.throttle.offset_ms, slide)
end

-- Return the last boundary at or before a time; nil if that boundary is below the range of numbers.
function frame.floor(time)
  return values.minus(time, past_boundary(time))
end

-- Return the first boundary after a time.
function frame.higher(time)
  return math.min(time + (config.throttle.slide - past_boundary(time)), values.HIGHEST)
end

return frame
