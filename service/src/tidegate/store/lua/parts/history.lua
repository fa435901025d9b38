-- @include parts/values
-- The history of a value: tidegate.domain.history, with the same 16 slots. H.cells[1] is the oldest; an empty cell is
-- false. Times are in sixteenths of a millisecond. H.length is what is looked back over, in milliseconds.
local CELLS = 17

local function history(length)
  local h = {length = length, cells = {}}
  for i = 1, CELLS do h.cells[i] = false end
  return h
end

local function history_text(h)
  local parts = {fmt(h.length), fmt(h.boundary)}
  for i = 1, CELLS do parts[#parts + 1] = h.cells[i] and fmt(h.cells[i]) or '' end
  return table.concat(parts, ',')
end

local function split(text, separator)
  local parts, from = {}, 1
  while true do
    local at = string.find(text, separator, from, true)
    if not at then
      parts[#parts + 1] = string.sub(text, from)
      return parts
    end
    parts[#parts + 1] = string.sub(text, from, at - 1)
    from = at + 1
  end
end

-- From `parts` (as split), beginning at `first`.
local function history_of(parts, first)
  local h = {length = tonumber(parts[first]), boundary = num(parts[first + 1]), cells = {}}
  for i = 1, CELLS do h.cells[i] = num(parts[first + 1 + i]) or false end
  return h
end

-- Closes the slots that have ended by `t`; returns how many there were.
local function roll(h, t)
  local now = t * 16
  if now < h.boundary then return 0 end
  local closed = math.floor((now - h.boundary) / h.length) + 1
  local shift, newest = math.min(closed, CELLS), h.cells[CELLS]
  for i = 1, CELLS do h.cells[i] = h.cells[i + shift] == nil and newest or h.cells[i + shift] end
  h.boundary = h.boundary + closed * h.length
  return closed
end

local function sample(h, t, value)
  if not h.boundary then
    h.boundary = t * 16 + h.length
  elseif roll(h, t) >= CELLS then
    h.boundary = t * 16 + h.length
  end
  h.cells[CELLS] = value or false
  return h.cells[1] or nil
end

-- From when on the answer will satisfy `better`, if nothing but time happens; nil if it never will.
local function next_change(h, better)
  if not h.boundary then return nil end
  for shifts = 1, CELLS - 1 do
    local cell = h.cells[shifts + 1]
    if cell and better(cell) then return math.ceil((h.boundary + (shifts - 1) * h.length) / 16) end
  end
end
