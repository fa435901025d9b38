-- End of input: all substreams are done, C goes to the first frame boundary above the job's top (without frames
-- top + 1), or at up to, if that is higher, past the throttle, and the job is frozen.
--
-- KEYS  1 the job · 2 the jobs to sweep
-- ARGV  now · absent after · not after · up to ('' : as far as was seen) · actor · reason
-- Reply ok, ... (parts/answer), applied (0: the job was complete, and up to is empty or not above C)
--       or error: job_not_found, job_deleted, batch_open <query> <batch>, hold_active <hold> <at most>
-- @include parts/answer
-- @include parts/end
local up_to = num(arg())
local refused = load_job()
if refused then return refused end
if J.complete and not (up_to and above(up_to, J.coalesced)) then return reply('0') end
local open = redis.call('ZRANGE', K.begun, 0, -1)
if #open > 0 then
  table.sort(open, sorts_before)
  return problem('batch_open', open[1], redis.call('HGET', K.query(open[1]), 'latest'))
end
for _, hold in ipairs(redis.call('ZRANGE', K.holds, 0, -1)) do
  local expires = num(redis.call('ZSCORE', K.hold_expiry, hold))
  if not expires or expires > J.now then
    return problem('hold_active', hold, fmt(tonumber(redis.call('ZSCORE', K.holds, hold))))
  end
end
advance(candidate(J.lead))
local last = J.top
if up_to and above(up_to - 1, last) then last = math.max(up_to - 1, -HIGHEST) end
if last then
  local framed = R.throttle and R.throttle.type == 'frame'
  advance(framed and frame_higher(last) or math.min(last + 1, HIGHEST))
end
release_at(J.coalesced)
if not J.complete then J.complete, J.completed = 1, J.t end
act('complete', read_why(), nil, nil, 'up_to', up_to and fmt(up_to))
return reply('1')
