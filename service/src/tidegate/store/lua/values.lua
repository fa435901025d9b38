-- Numbers, refusals, and Redis commands with many arguments.
--
-- "No watermark" is nil in Lua, '' in hashes, -inf as a score, and absent in replies. Lua prints integers of 15 digits
-- and more with an exponent, so a number that becomes part of a text passes through values.text(). An argument of
-- redis.call may be a number, because Redis prints all digits of an integer up to HIGHEST.
local values, bulk = {HIGHEST = 9007199254740991}, {CHUNK = 2000}
local CHUNK = bulk.CHUNK

function values.number(value)
  if type(value) == 'number' then return value end
  if not value or value == '' or value == '-inf' then return nil end
  return tonumber(value)
end

function values.text(number)
  if number == nil then return '' end
  return string.format('%.0f', number)
end

function values.score(number) return number or -math.huge end
function values.above(a, b) return a ~= nil and (b == nil or a > b) end

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

-- Redis commands with many arguments, split into chunks because unpack fails near 8000 values

-- Add members. pairs_ has alternating scores and members.
function bulk.zadd(name, flag, pairs_)
  for first = 1, #pairs_, 2 * CHUNK do
    local last = math.min(first + 2 * CHUNK - 1, #pairs_)
    if flag then
      redis.call('ZADD', name, flag, unpack(pairs_, first, last))
    else
      redis.call('ZADD', name, unpack(pairs_, first, last))
    end
  end
end

-- Add members with the same score.
function bulk.zadd_all(name, score, members, flag)
  local pairs_ = {}
  for i, member in ipairs(members) do pairs_[2 * i - 1], pairs_[2 * i] = score, member end
  bulk.zadd(name, flag, pairs_)
end

-- Add members with a column of scores.
function bulk.zadd_each(name, scores, members, flag)
  local pairs_ = {}
  for i, member in ipairs(members) do pairs_[2 * i - 1], pairs_[2 * i] = scores[i], member end
  bulk.zadd(name, flag, pairs_)
end

local function change(command, name, members)
  for first = 1, #members, CHUNK do
    redis.call(command, name, unpack(members, first, math.min(first + CHUNK - 1, #members)))
  end
end

function bulk.sadd(name, members) change('SADD', name, members) end
function bulk.srem(name, members) change('SREM', name, members) end
function bulk.zrem(name, members) change('ZREM', name, members) end
function bulk.hdel(name, fields) change('HDEL', name, fields) end

local function read(command, name, names)
  local found = {}
  for first = 1, #names, CHUNK do
    local part = redis.call(command, name, unpack(names, first, math.min(first + CHUNK - 1, #names)))
    for i = 1, #part do found[first + i - 1] = part[i] end
  end
  return found
end

function bulk.zmscore(name, members) return read('ZMSCORE', name, members) end

-- Return a column: 1 for each member that a set has, or else 0.
function bulk.smismember(name, members) return read('SMISMEMBER', name, members) end
function bulk.hmget(name, fields) return read('HMGET', name, fields) end

-- Move the members that a sorted set has to another set. names: their names in that set (absent: the same). score: their
-- score in that set (absent: the same).
function bulk.zmove(from, to, members, names, score)
  local present, moved = {}, {}
  for i, present_score in ipairs(bulk.zmscore(from, members)) do
    if present_score then
      present[#present + 1] = members[i]
      moved[#moved + 1], moved[#moved + 2] = score or present_score, (names or members)[i]
    end
  end
  bulk.zrem(from, present)
  bulk.zadd(to, nil, moved)
end

-- Return the members with a value in a column, and the other members, both in order.
function bulk.split(members, column)
  local present, absent = {}, {}
  for i, member in ipairs(members) do
    local list = column[i] and present or absent
    list[#list + 1] = member
  end
  return present, absent
end

-- Return the members that a sorted set has, and the other members, both in order.
function bulk.split_by_set(name, members) return bulk.split(members, bulk.zmscore(name, members)) end

-- Set fields. pairs_ has alternating fields and values.
function bulk.hset(name, pairs_)
  for first = 1, #pairs_, 2 * CHUNK do
    redis.call('HSET', name, unpack(pairs_, first, math.min(first + 2 * CHUNK - 1, #pairs_)))
  end
end

-- Add to a counter. An addition that would exceed 64 bits is ignored, so that the command does not fail.
function bulk.add(name, field, amount) redis.pcall('HINCRBY', name, field, amount) end

-- Add amounts, which are numbers or texts, to different counters. HINCRBY adds sums that a double cannot hold.
function bulk.add_each(name, fields, amounts)
  local found, sums, n = bulk.hmget(name, fields), {}, 0
  for i, field in ipairs(fields) do
    local sum = (found[i] and tonumber(found[i]) or 0) + amounts[i]
    if sum <= values.HIGHEST then
      sums[n + 1], sums[n + 2] = field, sum
      n = n + 2
    else
      bulk.add(name, field, amounts[i])
    end
  end
  bulk.hset(name, sums)
end

return values, bulk
