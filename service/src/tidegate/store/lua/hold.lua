-- Keeps C, and with it the watermark, at or below a value; where it is beyond already, where it is. Said again, it lasts
-- as long as the later of the two.
--
-- KEYS  1 the job · 2 the jobs to sweep
-- ARGV  now · absent after · not after · hold · at most · how long it lasts ('' : for ever) · actor · reason
-- Reply ok, ... (parts/answer), applied (0: it was there before, and lasts as long)
--       or error: job_not_found, job_deleted, job_complete, hold_exists <hold> <at most>
-- @include parts/answer
-- @include parts/end
local hold, at_most, lasts = arg(), arg(), num(arg())
local refused = load_job()
if refused then return refused end
local present = redis.call('ZSCORE', K.holds, hold)
local ends = num(redis.call('ZSCORE', K.hold_expiry, hold))
if J.complete then return problem('job_complete') end
local stands = present and (not ends or ends > J.now)
if stands then
  if tonumber(present) ~= tonumber(at_most) then return problem('hold_exists', hold, fmt(tonumber(present))) end
  if not (ends and (not lasts or J.now + lasts > ends)) then return reply('0') end
elseif present then
  J.more = 1  -- what it had held back may go on now
end
local why = read_why()
drop_hold(hold)
redis.call('ZADD', K.holds, at_most, hold)
if lasts then redis.call('ZADD', K.hold_expiry, fmt(J.now + lasts), hold) end
redis.call('HSET', K.hold_reasons, hold, why[2])
act('hold', why, nil, nil, 'hold', hold, 'at_most', at_most)
return reply('1')
