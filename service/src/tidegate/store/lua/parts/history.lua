-- @include parts/values
-- The history of one value, with the slots of tidegate.domain.history. cells[1] is the oldest cell; an empty cell is
-- false. boundary is in sixteenths of a millisecond, length in milliseconds.
local text = values.text
local history = {}
local CELLS = 17

function history.start(length)
  local h = {length = length, cells = {}}
  for i = 1, CELLS do h.cells[i] = false end
  return h
end

-- Return a history as text, for a reply: length, boundary and cells, with commas between them.
function history.line(h)
  local parts = {text(h.length), text(h.boundary)}
  for i = 1, CELLS do parts[#parts + 1] = h.cells[i] and text(h.cells[i]) or '' end
  return table.concat(parts, ',')
end

-- Close the slots that have ended by a time; return their number.
function history.roll(h, time)
  local now = time * 16
  if now < h.boundary then return 0 end
  local closed = math.floor((now - h.boundary) / h.length) + 1
  local shift, newest = math.min(closed, CELLS), h.cells[CELLS]
  for i = 1, CELLS do
    local cell = h.cells[i + shift]
    if cell == nil then cell = newest end
    h.cells[i] = cell
  end
  h.boundary = h.boundary + closed * h.length
  return closed
end

-- Record the current value and return the value of `length` ago.
function history.sample(h, time, value)
  if not h.boundary then
    h.boundary = time * 16 + h.length
  elseif history.roll(h, time) >= CELLS then
    h.boundary = time * 16 + h.length
  end
  h.cells[CELLS] = value or false
  return h.cells[1] or nil
end

-- Return the next time at which the returned value changes to one that satisfies `matters`, without new samples; nil if
-- no value of the history satisfies it.
function history.next_change(h, matters)
  if not h.boundary then return nil end
  for shifts = 1, CELLS - 1 do
    local cell = h.cells[shifts + 1]
    if cell and matters(cell) then return math.ceil((h.boundary + (shifts - 1) * h.length) / 16) end
  end
end

return history
