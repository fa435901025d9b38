-- Variadic calls in chunks: unpack breaks near 8000 values.
local CHUNK = 2000

local function zadd(key, flag, pairs_)
  local added = 0
  for first = 1, #pairs_, 2 * CHUNK do
    local last = math.min(first + 2 * CHUNK - 1, #pairs_)
    if flag then
      added = added + redis.call('ZADD', key, flag, unpack(pairs_, first, last))
    else
      added = added + redis.call('ZADD', key, unpack(pairs_, first, last))
    end
  end
  return added
end

-- The same score for all members.
local function zadd_all(key, score_, members, flag)
  local pairs_ = {}
  for i, member in ipairs(members) do pairs_[2 * i - 1], pairs_[2 * i] = score_, member end
  zadd(key, flag, pairs_)
end

local function remove(command, key, members)
  for first = 1, #members, CHUNK do
    redis.call(command, key, unpack(members, first, math.min(first + CHUNK - 1, #members)))
  end
end

local function zrem(key, members)
  remove('ZREM', key, members)
end

local function hdel(key, fields)
  remove('HDEL', key, fields)
end

local function read_many(command, key, names)
  local values = {}
  for first = 1, #names, CHUNK do
    local part = redis.call(command, key, unpack(names, first, math.min(first + CHUNK - 1, #names)))
    for i = 1, #part do values[first + i - 1] = part[i] end
  end
  return values
end

local function zmscore(key, members)
  return read_many('ZMSCORE', key, members)
end

local function hmget(key, fields)
  return read_many('HMGET', key, fields)
end

-- Adds to a counter. Past 64 bits it stays where it is: a counter must not take the transition it belongs to with it.
local function add(key, field, rows)
  redis.pcall('HINCRBY', key, field, rows)
end
