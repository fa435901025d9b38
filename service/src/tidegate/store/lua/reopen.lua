-- Takes an end of input back, but never the watermark.
--
-- KEYS  1 the job · 2 the jobs to sweep
-- ARGV  now · absent after · not after · actor · reason
-- Reply ok, ... (parts/answer), applied (0: it was not complete)
--       or error: job_not_found, job_deleted
-- @include parts/answer
-- @include parts/end
local refused = load_job()
if refused then return refused end
if not J.complete then return reply('0') end
-- Reports were refused since its end, so that time is nobody's silence.
J.complete, J.lost, J.t = nil, J.lost + (J.t - J.completed), J.completed
act('reopen', read_why())
-- Nobody fell idle while it was complete, though clocks may have moved.
local left = time_out_queries()
for _, query in ipairs(redis.call('SMEMBERS', K.owners)) do
  left = expire(query, num(redis.call('HGET', K.query(query), 'idle_clock'))) or left
end
look(nil, false, left)
return reply('1')
