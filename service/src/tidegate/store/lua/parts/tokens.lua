-- @include parts/emission
-- Watermark tokens: a client returns its latest token, which restores a watermark that the store has lost.
-- The coordinator verifies the token before the command, and replaces an invalid token with one of incarnation 0.
local job = state.job
local tokens = {}

function tokens.accept(token)
  if not token then return end
  local watermark = values.number(token.watermark)
  if token.incarnation < job.incarnation then
    redis.call('HINCRBY', key.job, 'tokens_ignored', 1)
    return
  end
  local was_lost = token.incarnation > job.incarnation or values.above(watermark, job.watermark)
  job.incarnation = token.incarnation
  emission.raise_watermark(watermark)
  if was_lost then journal.write('watermark_restored', 'watermark', watermark) end
end

return tokens
