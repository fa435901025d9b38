-- @include parts/job
-- Frame boundaries, exact on doubles: fmod is, Lua's own % is not. And what a throttle lets out.
local function past_boundary(time)
  local rest = math.fmod(time, R.throttle.slide)
  if rest < 0 then rest = rest + R.throttle.slide end
  rest = rest - R.throttle.offset
  if rest < 0 then rest = rest + R.throttle.slide end
  return rest
end

local function frame_floor(time)
  return minus(time, past_boundary(time))
end

local function frame_higher(time)
  return math.min(time + (R.throttle.slide - past_boundary(time)), HIGHEST)
end

-- The watermark that may go out in place of `ideal`; nil for none.
local function candidate(ideal)
  if ideal == nil or R.throttle == nil then return ideal end
  if R.throttle.type == 'frame' then return frame_floor(ideal) end
  if J.coalesced == nil or ideal >= J.coalesced + R.throttle.min_step then return ideal end
end
