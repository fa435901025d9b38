-- @include parts/journal
-- Holds: instructions to keep C at or below a value.
local number = values.number
local holds = {}

-- Return the lowest hold, which limits C, and its value.
function holds.lowest()
  if state.changes.is_plain then return nil end
  return values.lowest_of(key.holds)
end

-- Return the lower of the watermark and the lowest hold.
function holds.cap(watermark)
  local _, at_most = holds.lowest()
  if at_most and watermark then return math.min(watermark, at_most) end
  return watermark
end

-- Return all holds, lowest first.
function holds.in_order()
  local found, unattended = {}, state.job.unattended
  for _, hold in ipairs(redis.call('ZRANGE', key.holds, 0, -1)) do
    local expires = number(redis.call('ZSCORE', key.hold_expiry, hold))
    found[#found + 1] = {map = {hold = hold, at_most = number(redis.call('ZSCORE', key.holds, hold)),
      expires_ms = expires and expires + unattended, reason = redis.call('HGET', key.hold_reasons, hold)}}
  end
  return found
end

function holds.remove(hold)
  redis.call('ZREM', key.holds, hold)
  redis.call('ZREM', key.hold_expiry, hold)
  redis.call('HDEL', key.hold_reasons, hold)
end

-- Remove expired holds.
function holds.expire()
  if state.changes.is_plain then return end
  for _, hold in ipairs(redis.call('ZRANGE', key.hold_expiry, '-inf', state.job.observed_now, 'BYSCORE')) do
    holds.remove(hold)
    journal.write('hold_expired', 'hold', hold)
  end
end

return holds
