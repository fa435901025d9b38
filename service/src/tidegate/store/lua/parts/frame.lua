-- @include parts/state
-- Frame boundaries, exact on doubles. math.fmod is exact; the % operator of Lua is not.
local config = state.config
local frame = {}

local function past_boundary(time)
  local slide, rest = config.throttle.slide, math.fmod(time, config.throttle.slide)
  if rest < 0 then rest = rest + slide end
  rest = rest - config.throttle.offset_ms
  if rest < 0 then rest = rest + slide end
  return rest
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
