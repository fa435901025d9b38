-- The table of substreams. Changes nothing.
--
-- KEYS  1 the job
-- ARGV  now
-- Reply ok, ... (parts/answer), rows: each member, state, watermark, top, last event,
--       reported, on_time, updated, late, null_event_time, future
--       or error: job_not_found, job_deleted
-- @include parts/answer
local refused = load_job()
if refused then return refused end
local rows, observed, lost = {}, {}, {}
for _, member in ipairs(redis.call('ZRANGE', K.tops, 0, -1)) do
  local query = string.sub(member, 1, string.find(member, '/', 1, true) - 1)
  if not observed[query] then observed[query], lost[query] = observed_by(query) end
  local state, last_event = 'active', redis.call('ZSCORE', K.expiry(query), member)
  if last_event then
    if J.idle_timeout and observed[query] - tonumber(last_event) >= J.idle_timeout then state = 'blocked' end
  else
    state, last_event = 'idle', redis.call('ZSCORE', K.quiet(query), member)
    if not last_event then
      state, last_event = 'done', redis.call('ZSCORE', K.done, member)
    end
  end
  local watermark = redis.call('ZSCORE', K.live, member) or redis.call('ZSCORE', K.parked, member)
  local counts = redis.call('HMGET', K.counts, 'reported ' .. member, 'on_time ' .. member, 'updated ' .. member, 'late ' .. member,
    'null_event_time ' .. member, 'future ' .. member)
  rows[#rows + 1] = {member, state, out(num(watermark)), out(num(redis.call('ZSCORE', K.tops, member))),
    out(tonumber(last_event) + lost[query]), unpack(counts)}
end
return answer(rows)
