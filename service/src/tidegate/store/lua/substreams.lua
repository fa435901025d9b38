-- The table of substreams. Changes nothing.
--
-- KEYS  1 the job
-- ARGV  now · absent after · not after
-- Reply ok, ... (parts/answer), rows: each member, state, watermark, top, last event,
--       reported, future reported, on_time, updated, late, null_event_time, future
--       or error: job_not_found, job_deleted
-- @include parts/answer
local refused = load_job()
if refused then return refused end
local rows, observed, lost = {}, {}, {}
for _, member in ipairs(redis.call('ZRANGE', K.tops, 0, -1)) do
  if name_of(member) ~= '' then
    local query = query_of(member)
    if not observed[query] then observed[query], lost[query] = observed_by(query) end
    local state, last_event = 'active', redis.call('ZSCORE', K.expiry(query), member)
    if last_event then
      if R.idle_timeout and observed[query] - tonumber(last_event) >= R.idle_timeout then state = 'blocked' end
    else
      state, last_event = 'idle', redis.call('ZSCORE', K.quiet(query), member)
      if not last_event then
        state, last_event = 'done', redis.call('ZSCORE', K.done, member)
      end
    end
    if J.complete then state = 'done' end
    local watermark = num(redis.call('ZSCORE', K.live, member) or redis.call('ZSCORE', K.parked, member))
    local policy = policy_of(member)
    if policy.limit and redis.call('ZSCORE', K.lagged(policy.limit), member) then
      watermark = own_watermark(state_of(redis.call('HGET', K.clocked, member), policy), policy)
    end
    local counts = redis.call('HMGET', K.counts, 'reported ' .. member, 'future_reported ' .. member,
      'on_time ' .. member, 'updated ' .. member, 'late ' .. member, 'null_event_time ' .. member, 'future ' .. member)
    rows[#rows + 1] = {member, state, out(watermark), out(num(redis.call('ZSCORE', K.tops, member))),
      out(tonumber(last_event) + lost[query]), unpack(counts)}
  end
end
return answer(rows)
