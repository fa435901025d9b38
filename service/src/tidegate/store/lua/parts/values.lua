-- Numbers and nulls. "No watermark" is nil in here, "" in hashes and arguments, -inf as a score, false in replies.
-- Lua prints whole numbers from 15 digits on as exponents, so every number leaves through fmt.
local HIGHEST = 9007199254740991

local function num(text)
  if not text or text == '' or text == '-inf' then return nil end
  return tonumber(text)
end

local function fmt(number)
  if number == nil then return '' end
  return string.format('%.0f', number)
end

local function score(number)
  if number == nil or number == -math.huge then return '-inf' end
  return string.format('%.0f', number)
end

local function out(number)
  if number == nil then return false end
  return string.format('%.0f', number)
end

local function above(a, b)
  return a ~= nil and (b == nil or a > b)
end

local function higher(a, b)
  if above(a, b) then return a end
  return b
end

-- value - amount, or nil where that cannot be held
local function minus(value, amount)
  local difference = value - amount
  if difference < -HIGHEST then return nil end
  return difference
end

local function lowest_of(key)
  local first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
  return first[1], num(first[2])
end

local function highest_of(key)
  local last = redis.call('ZRANGE', key, 0, 0, 'REV', 'WITHSCORES')
  return last[1], num(last[2])
end

-- Whether text a sorts before b, by bytes as Redis sorts members; Lua's own < goes by the server's locale.
local function sorts_before(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then return x < y end
  end
  return #a < #b
end

local function problem(code, ...)
  return {'error', code, ...}
end
