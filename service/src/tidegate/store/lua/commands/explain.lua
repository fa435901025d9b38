-- Return the data of an explanation: the job after a sweep, and its holders, lowest first. Active substreams and open
-- batches are limited to those that may hold the watermark.
--
-- args   limit
-- reply  config (JSON), unattended_ms, max_watermark, coalesced_watermark_since_ms, watermark_since_ms,
--        retention (parts/history), holds, open_batches, substreams, queries (of these batches and substreams)
-- @include parts/reply
local job, number = state.job, values.number
local limit = args.limit
reply.load()
evaluate.sweep_for_read()

local listed, is_listed = {}, {}
local function list_query(query)
  if is_listed[query] or query == '' then return end
  is_listed[query] = true
  local of = queries.get(query)
  listed[#listed + 1] = {map = {query = query, outage_ms = of.outage, idle_clock_ms = of.idle_clock,
    last_seen_ms = number(redis.call('ZSCORE', key.last_seen, query))}}
end

local substreams, behind = {}, emission.slowest_first(emission.active_sets(), limit)
for i = 1, math.min(limit, #behind) do
  local one = behind[i]
  local query = policy.query_of(one.member)
  list_query(query)
  local is_advancing = redis.call('ZSCORE', key.advancing, one.member)
  local change = is_advancing and job.observed_now + 1 or number(redis.call('ZSCORE', key.next_change, one.member))
  substreams[i] = {map = {member = one.member, watermark = one.watermark > -math.huge and one.watermark or nil,
    max_event_time = max_event_times.of_one(one.member),
    last_event_ms = number(redis.call('ZSCORE', key.last_events(query), one.member)),
    next_change_ms = change and change > -math.huge and math.min(change, values.HIGHEST + 1) or nil}}
end

local open = {}
local pins = redis.call('ZRANGE', key.open_pins, 0, limit - 1, 'WITHSCORES')
for i = 1, #pins, 2 do
  local query = pins[i]
  list_query(query)
  local of = queries.get(query)
  open[#open + 1] = {map = {query = query, pinned_watermark = number(pins[i + 1]), batch_id = of.latest,
    begun_ms = of.begun, begun_observed_ms = number(redis.call('ZSCORE', key.open_batches, query))}}
end

return reply.finish({config = redis.call('HGET', key.job, 'config'), unattended_ms = job.unattended,
  max_watermark = job.max_watermark, coalesced_watermark_since_ms = job.coalesced_watermark_since,
  watermark_since_ms = job.watermark_since, retention = job.retention and history.line(job.retention), holds = holds.in_order(), open_batches = open,
  substreams = substreams, queries = listed})
