-- Read some substreams, or all substreams of a small job.
--
-- args   members (unknown members are ignored), limit (absent: 0). If slowest (a number) is present and the job has more
--        than limit: the holder, and the slowest active substreams, after (absent: from the start) a member and its
--        watermark
-- reply  config (JSON), max_watermark, is_complete (whether rows has all substreams: the job has at most limit),
--        rows (member, and the fields of tidegate.domain.results.SubstreamRow), slowest (members in order)
-- @include parts/emission
-- @include parts/membership
local job, config, number = state.job, state.config, values.number
local CLASSES = {'reported_rows', 'future_rows', 'on_time', 'updated', 'late', 'null_event_time', 'future'}
clock.load()

local function watermark_of(member)
  local rule = policy.of(member)
  if rule.limit and (redis.call('ZSCORE', key.lagged(rule.limit), member) or advancing.idle_ones({member})[1]) then
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

-- Return the slowest active substreams in order, without placeholders.
local function find_slowest()
  if args.slowest == 0 then return {} end
  local found, limit = {}, args.slowest + redis.call('SCARD', key.missing_queries)
  for _, row in ipairs(emission.slowest_first(emission.active_sets(), limit, args.after)) do
    if #found < args.slowest and policy.name_of(row.member) ~= '' then found[#found + 1] = row.member end
  end
  return found
end

-- Return the members of a list, and the substream that holds the watermark.
local function with_holder(listed)
  local holder, found = emission.held_by() or {}, {unpack(listed)}
  local member = holder.substream and holder.query .. '/' .. holder.substream
  for _, one in ipairs(listed) do
    if one == member then return found end
  end
  found[#found + 1] = member
  return found
end

local members, is_complete, slowest, rows = args.members, false, {}, {}
if membership.count() <= (args.limit or 0) then
  members, is_complete = membership.all(), true
elseif args.slowest then
  slowest = find_slowest()
  members = with_holder(slowest)
end
members = membership.split(members)
local event_times = max_event_times.of(members)
for i, member in ipairs(members) do rows[i] = row_of(member, event_times[i]) end
return emission.watermark_state({config = redis.call('HGET', key.job, 'config'), max_watermark = job.max_watermark,
  is_complete = is_complete, rows = rows, slowest = slowest})
