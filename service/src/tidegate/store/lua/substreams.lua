-- The table of some substreams. Changes nothing.
--
-- KEYS  1 the job
-- ARGV  now · absent after · not after · members (column); those not known are passed over
-- Reply ok, ... (parts/answer), lead, rows: each member, state, since, watermark, top, lag, last event,
--       reported, future reported, on_time, updated, late, null_event_time, future
--       or error: job_not_found, job_deleted
-- @include parts/answer
local members = column()
local refused = load_job()
if refused then return refused end
local rows, observed, lost = {}, {}, {}
local tops = zmscore(K.tops, members)
for i, member in ipairs(members) do
  if tops[i] then
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
    local since = tonumber(redis.call('ZSCORE', K.since, member))
    if J.complete and state ~= 'done' then
      state, since = 'done', J.completed + J.lost
    elseif state == 'blocked' then
      since = tonumber(last_event) + lost[query] + R.idle_timeout
    end
    local watermark = num(redis.call('ZSCORE', K.live, member) or redis.call('ZSCORE', K.parked, member))
    local policy = policy_of(member)
    if policy.limit and redis.call('ZSCORE', K.lagged(policy.limit), member) then
      watermark = own_watermark(state_of(redis.call('HGET', K.clocked, member), policy), policy)
    end
    local counts = redis.call('HMGET', K.counts, 'reported ' .. member, 'future_rows ' .. member,
      'on_time ' .. member, 'updated ' .. member, 'late ' .. member, 'null_event_time ' .. member, 'future ' .. member)
    local lag = state ~= 'done' and num(lags_of({member})[1]) or nil
    rows[#rows + 1] = {member, state, fmt(since), out(watermark), out(num(tops[i])), out(lag),
      out(tonumber(last_event) + lost[query]), unpack(counts)}
  end
end
return answer(out(J.lead), rows)
