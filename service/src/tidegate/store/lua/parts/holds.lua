-- @include parts/journal
-- An operator's holds: the lowest caps C.
local function lowest_hold()
  return lowest_of(K.holds)
end

-- Each hold: its name, at most, when it expires, and the reason for it.
local function all_holds()
  local holds = {}
  for _, hold in ipairs(redis.call('ZRANGE', K.holds, 0, -1)) do
    holds[#holds + 1] = {hold, out(num(redis.call('ZSCORE', K.holds, hold))),
      out(num(redis.call('ZSCORE', K.hold_expiry, hold))), redis.call('HGET', K.hold_reasons, hold)}
  end
  return holds
end

local function drop_hold(hold)
  redis.call('ZREM', K.holds, hold)
  redis.call('ZREM', K.hold_expiry, hold)
  redis.call('HDEL', K.hold_reasons, hold)
end

local function expire_holds()
  for _, hold in ipairs(redis.call('ZRANGE', K.hold_expiry, '-inf', fmt(J.now), 'BYSCORE')) do
    drop_hold(hold)
    record('hold_expired', 'hold', hold)
  end
end
