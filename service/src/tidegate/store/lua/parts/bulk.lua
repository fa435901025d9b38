-- Variadic writes in chunks: unpack breaks near 8000 values.
local CHUNK = 2000

local function zadd(key, flag, pairs_)
  for first = 1, #pairs_, 2 * CHUNK do
    local last = math.min(first + 2 * CHUNK - 1, #pairs_)
    if flag then
      redis.call('ZADD', key, flag, unpack(pairs_, first, last))
    else
      redis.call('ZADD', key, unpack(pairs_, first, last))
    end
  end
end

local function zrem(key, members)
  for first = 1, #members, CHUNK do
    redis.call('ZREM', key, unpack(members, first, math.min(first + CHUNK - 1, #members)))
  end
end

local function zmscore(key, members)
  local scores = {}
  for first = 1, #members, CHUNK do
    local part = redis.call('ZMSCORE', key, unpack(members, first, math.min(first + CHUNK - 1, #members)))
    for i = 1, #part do scores[first + i - 1] = part[i] end
  end
  return scores
end
