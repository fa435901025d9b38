-- @include parts/journal
-- C and W: the first is what the data says, the second what may be relied on. Neither goes back.
local function advance(coalesced)
  if above(coalesced, J.coalesced) then
    J.coalesced, J.coalesced_since = coalesced, J.now
  end
end

-- A watermark that is known to be out already, or may go out.
local function release_at(watermark)
  advance(watermark)
  if above(watermark, J.watermark) then
    J.watermark, J.watermark_since = watermark, J.now
  end
end

-- W = min(C, pins of the open batches)
local function release()
  local watermark = J.coalesced
  local query, pin = lowest_of(K.open)
  if query and above(watermark, pin) then watermark = pin end
  release_at(watermark)
end

-- A watermark that a token proves: incarnation and value are the next two arguments ('' '' without a token, an
-- incarnation of 0, older than any, for one that proves nothing). Read where
-- the arguments are read, applied once nothing can be refused any more.
local function read_token()
  return {incarnation = num(arg()), watermark = num(arg())}
end

local function heal(token)
  if token.incarnation == nil then return end
  if token.incarnation < J.incarnation then
    redis.call('HINCRBY', K.job, 'tokens_ignored', 1)
    return
  end
  local forgotten = token.incarnation > J.incarnation or above(token.watermark, J.watermark)
  J.incarnation = token.incarnation
  release_at(token.watermark)
  if forgotten then record('watermark_restored', 'watermark', out(token.watermark)) end
end
