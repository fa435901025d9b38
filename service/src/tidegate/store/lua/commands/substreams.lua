-- Read some substreams, or all substreams of a small job.
--
-- args   members (unknown members are ignored), limit (absent: 0)
-- reply  config (JSON), max_watermark, is_complete (whether rows has all substreams: the job has at most limit),
--        rows (member, and the fields of tidegate.domain.results.SubstreamRow)
-- @include parts/emission
-- @include parts/membership
local job, config, number = state.job, state.config, values.number
local CLASSES = {'reported_rows', 'future_rows', 'on_time', 'updated', 'late', 'null_event_time', 'future'}
clock.load()

local function watermark_of(member)
  local rule = policy.of(member)
  if rule.limit and redis.call('ZSCORE', key.lagged(rule.limit), member) then
    return clock_driven.own_watermark(clock_driven.read(redis.call('HGET', key.clock_driven, member)), rule)
  end
  return number(redis.call('ZSCORE', key.active, member) or redis.call('ZSCORE', key.frozen, member))
end

local times = {}  -- observed time and outages, by query

local function row_of(member, max_event_time)
  local query = policy.query_of(member)
  if not times[query] then times[query] = {clock.observed_time(query)} end
  local observed, outage = unpack(times[query])
  local state_, last_event = idleness.state_of(query, member, observed)
  local since = tonumber(redis.call('ZSCORE', key.since, member))
  if job.is_complete and state_ ~= 'done' then
    state_, since = 'done', job.completed + job.unattended
  elseif state_ == 'blocked' then
    since = last_event + outage + config.idle_timeout_ms
  end
  local row = {member = member, state = state_, since_ms = since, watermark = watermark_of(member),
    max_event_time = max_event_time or nil, last_event_ms = last_event + outage,
    lag = state_ ~= 'done' and policy.lags_of({member})[1] or nil}
  local fields = {}
  for i, class in ipairs(CLASSES) do fields[i] = class .. ' ' .. member end
  for i, rows in ipairs(redis.call('HMGET', key.rows, unpack(fields))) do row[CLASSES[i]] = rows or nil end
  return {map = row}
end

local members, is_complete, rows = args.members, false, {}
if membership.count() <= (args.limit or 0) then members, is_complete = membership.all(), true end
members = membership.split(members)
local event_times = max_event_times.of(members)
for i, member in ipairs(members) do rows[i] = row_of(member, event_times[i]) end
return emission.watermark_state({config = redis.call('HGET', key.job, 'config'), max_watermark = job.max_watermark,
  is_complete = is_complete, rows = rows})
