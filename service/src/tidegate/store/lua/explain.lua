-- What an explanation is computed from: the job after a look, and those that hold it, the furthest behind first. Of the
-- live substreams and the open batches only so many are told as may come to hold it; the others are ahead of all of them.
--
-- KEYS  1 the job · 2 the jobs to sweep
-- ARGV  now · absent after · not after · how many at the most
-- Reply ok, ... (parts/answer), config (JSON), lost, lead, top, all idle (1/0), coalesced since, watermark since,
--       retention (parts/history),
--       holds (each name, at most, expires, reason),
--       open batches (each query, pin, latest, begun, observed begin),
--       live substreams (each member, reading, top, last event in observed time, next change or nil),
--       queries of these (each name, lost, idle clock, contact in observed time)
--       or error: job_not_found, job_deleted
-- @include parts/answer
local most = tonumber(arg())
local refused = load_job()
if refused then return refused end
look(nil, true)

local behind = {}
for _, place_ in ipairs({{K.live, 0}, {K.still, 0}, {K.drift, J.look or 0, true}}) do
  local found = redis.call('ZRANGE', place_[1], 0, most - 1, 'WITHSCORES')
  for i = 1, #found, 2 do
    local value = num(found[i + 1])
    value = value and math.min(value + place_[2], HIGHEST) or -math.huge
    behind[#behind + 1] = {found[i], value, place_[3]}
  end
end
table.sort(behind, function(a, b)
  if a[2] ~= b[2] then return a[2] < b[2] end
  return a[1] ~= b[1] and sorts_before(a[1], b[1])
end)

local queries, known = {}, {}
local function tell_query(query)
  if known[query] or query == '' then return end
  known[query] = true
  local fields = redis.call('HMGET', K.query(query), 'lost', 'idle_clock')
  queries[#queries + 1] = {query, fields[1] or '0', out(num(fields[2])), out(num(redis.call('ZSCORE', K.contact, query)))}
end

local live = {}
for i = 1, math.min(most, #behind) do
  local member, reading, drifts = unpack(behind[i], 1, 3)
  local query = query_of(member)
  tell_query(query)
  local change = drifts and J.t + 1 or num(redis.call('ZSCORE', K.due, member))
  live[i] = {member, out(reading > -math.huge and reading or nil), out(num(redis.call('ZSCORE', K.tops, member))),
    redis.call('ZSCORE', K.expiry(query), member), out(change)}
end

local open = {}
local pins = redis.call('ZRANGE', K.open, 0, most - 1, 'WITHSCORES')
for i = 1, #pins, 2 do
  local query = pins[i]
  tell_query(query)
  local fields = redis.call('HMGET', K.query(query), 'latest', 'begun')
  open[#open + 1] = {query, out(num(pins[i + 1])), fields[1], fields[2], redis.call('ZSCORE', K.begun, query)}
end

return reply(redis.call('HGET', K.job, 'config'), fmt(J.lost), out(J.lead), out(J.top), J.all_idle and '1' or '0',
  out(J.coalesced_since), out(J.watermark_since), J.retention, all_holds(), open, live, queries)
