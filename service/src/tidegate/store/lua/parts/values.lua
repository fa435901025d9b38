-- Numbers and refusals. "No watermark" is nil in Lua, '' in hashes, -inf as a score, and absent in replies.
-- Lua prints integers of 15 digits and more with an exponent, so a number that becomes part of a text passes through text().
-- An argument of redis.call may be a number, because Redis prints all digits of an integer up to HIGHEST.
local values = {HIGHEST = 9007199254740991}

function values.number(value)
  if type(value) == 'number' then return value end
  if not value or value == '' or value == '-inf' then return nil end
  return tonumber(value)
end

function values.text(number)
  if number == nil then return '' end
  return string.format('%.0f', number)
end

function values.score(number)
  return number or -math.huge
end

function values.above(a, b)
  return a ~= nil and (b == nil or a > b)
end

function values.highest(a, b)
  if values.above(a, b) then return a end
  return b
end

-- Return value - amount, or nil if the difference is below the range of numbers.
function values.minus(value, amount)
  local difference = value - amount
  if difference < -values.HIGHEST then return nil end
  return difference
end

-- Return the remainder of a floor division, exact on doubles. The % operator of Lua is not exact.
function values.modulo(a, b)
  local rest = math.fmod(a, b)
  if rest < 0 then return rest + b end
  return rest
end

-- Return the member with the lowest score of a sorted set, and that score.
function values.lowest_of(name)
  local first = redis.call('ZRANGE', name, 0, 0, 'WITHSCORES')
  return first[1], values.number(first[2])
end

function values.highest_of(name)
  local last = redis.call('ZRANGE', name, 0, 0, 'REV', 'WITHSCORES')
  return last[1], values.number(last[2])
end

-- Return whether a sorts before b by bytes, as Redis sorts members; the < of Lua depends on the locale of the server.
function values.sorts_before(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then return x < y end
  end
  return #a < #b
end

-- End the command with an error of tidegate.domain.errors; details has its fields. Call this before the first write.
function values.refuse(code, details)
  details = details or {}
  details.error = code
  error({refused = details})
end

return values
