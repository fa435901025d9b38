-- @include job
-- Frames: the intervals of event time that a job declares, as in tidegate.domain.calendar. config.frames has every (a
-- length, 'day' or 'month'), offset_ms, correction_delay_ms and declared (a text that names all parameters but the delay);
-- of days and months also offsets and changes, the offsets of the time zone.
local HIGHEST = values.HIGHEST
local config = state.config
local calendar = {}
local DAY, ERA, EPOCH = 86400000, 146097, 719468
local DAYS_BEFORE = {306, 337, 0, 31, 61, 92, 122, 153, 184, 214, 245, 275}

-- Return the quotient, rounded down; exact on doubles.
local function whole(a, b) return (a - values.modulo(a, b)) / b end

-- Return the number of changes of the time zone at or before a time.
local function changes_until(time)
  local changes = config.frames.changes
  local first, last = 0, #changes
  while first < last do
    local middle = math.floor((first + last) / 2)
    if changes[middle + 1] <= time then first = middle + 1 else last = middle end
  end
  return first
end

-- Return the time at which the clocks show a local time.
local function moment_of(shown)
  local offsets, changes = config.frames.offsets, config.frames.changes
  local last = changes_until(shown + DAY)
  for at = changes_until(shown - DAY), last - 1 do
    local before, after = shown - offsets[at + 1], shown - offsets[at + 2]
    if before < changes[at + 1] or after < changes[at + 1] then return before end
  end
  return shown - offsets[last + 1]
end

local function first_day_of(month)
  local year, index = 1970 + whole(month, 12), values.modulo(month, 12)
  if index < 2 then year = year - 1 end  -- a year that starts with March
  return year * 365 + whole(year, 4) - whole(year, 100) + whole(year, 400) + DAYS_BEFORE[index + 1] - EPOCH
end

local function month_of(day)
  local month = math.floor(day * 4800 / ERA)
  while first_day_of(month) > day do month = month - 1 end
  while first_day_of(month + 1) <= day do month = month + 1 end
  return month
end

-- Return the start of a frame, limited to exact numbers.
function calendar.start_of(number)
  local declared, start = config.frames, nil
  if type(declared.every) == 'number' then
    start = number * declared.every + declared.offset_ms
  else
    local day = declared.every == 'day' and number or first_day_of(number)
    start = moment_of(day * DAY + declared.offset_ms)
  end
  return math.min(math.max(start, -HIGHEST), HIGHEST)
end

-- Return the number of the frame that contains a time.
function calendar.number_of(time)
  local declared = config.frames
  if type(declared.every) == 'number' then
    -- The difference of the time and the offset may be inexact.
    local past, offset_past = values.modulo(time, declared.every), declared.offset_ms
    return whole(time, declared.every) - (past < offset_past and 1 or 0)
  end
  local day = whole(time, DAY) + 1  -- a clock is less than a day ahead of UTC
  local number = declared.every == 'day' and day or month_of(day)
  while calendar.start_of(number) > time do number = number - 1 end
  return number
end

-- Return the start of the frame that contains a time, and its number.
function calendar.frame_of(time)
  local number = calendar.number_of(time)
  return calendar.start_of(number), number
end

return calendar
