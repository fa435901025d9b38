-- @include parts/job
-- Frame boundaries, exact on doubles: fmod is, Lua's own % is not.
local function past_boundary(time)
  local rest = math.fmod(time, J.slide)
  if rest < 0 then rest = rest + J.slide end
  rest = rest - J.offset
  if rest < 0 then rest = rest + J.slide end
  return rest
end

local function frame_floor(time)
  local boundary = time - past_boundary(time)
  if boundary < -HIGHEST then return nil end
  return boundary
end

local function frame_higher(time)
  return math.min(time + (J.slide - past_boundary(time)), HIGHEST)
end
