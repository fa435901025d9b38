-- @include parts/watermark
-- The record that every command answers with: see tidegate.domain.records.Answer.
local function holder()
  local query, pin = lowest_of(K.open)
  local member = lowest_of(K.live)
  if query and (not member or above(J.coalesced, pin)) then
    local batch = redis.call('HGET', K.query(query), 'latest')
    return {'open_batch', query, false, batch, out(J.watermark_since)}
  end
  if J.complete or not member then return false end
  local slash = string.find(member, '/', 1, true)
  query = string.sub(member, 1, slash - 1)
  local reason = 'slow'
  if not num(redis.call('ZSCORE', K.tops, member)) then reason = 'never_reported' end
  local last_event = tonumber(redis.call('ZSCORE', K.expiry(query), member))
  if J.idle_timeout and observed_by(query) - last_event >= J.idle_timeout then reason = 'blocked' end
  return {reason, query, string.sub(member, slash + 1), false, out(J.coalesced_since)}
end

local function answer(...)
  return {'ok', fmt(J.incarnation), J.epoch, fmt(J.now), out(J.watermark), out(J.coalesced),
    J.complete and '1' or '0', holder(), ...}
end
