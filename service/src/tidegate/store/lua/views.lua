-- @include batches
-- The reads of a job. Explain and watch also evaluate the job, because watermarks may follow the clock.
local number, text = values.number, values.text
local job, config = state.job, state.config

-- Status: read the summary of a job.
-- reply  config (JSON), revision, created_ms, and the fields of tidegate.domain.views.JobSummary
local STATUS_FIELDS = {'config', 'created', 'on_time', 'updated', 'late', 'null_event_time', 'future', 'future_rows',
  'tokens_ignored'}

function commands.status()
  clock.load()
  local missing = redis.call('SMEMBERS', key.missing_queries)
  local done = redis.call('ZCARD', key.done)
  local known = membership.count() - #missing
  local active = membership.number_counting()
  local idle = membership.count() - active - done
  for _, query in ipairs(missing) do
    if redis.call('ZSCORE', key.active, query .. '/') then active = active - 1 else idle = idle - 1 end
  end
  local skewed = limits.number_skewed()
  active = active - skewed
  if job.is_complete then active, skewed, idle, done = 0, 0, 0, known end

  local found = {revision = job.revision, max_event_time = job.max_event_time, max_watermark = job.max_watermark,
    active = active, skewed = skewed, idle = idle, done = done, all_idle = job.all_idle, emissions = job.emissions, throttled = job.throttled,
    last_contact_ms = job.last_contact, open_batches = redis.call('ZCARD', key.open_batches), holds = holds.in_order(),
    missing_queries = missing, arrivals = limits.arrivals()}
  for i, value in ipairs(redis.call('HMGET', key.job, unpack(STATUS_FIELDS))) do found[STATUS_FIELDS[i]] = value or nil end
  local unread, skipped = {}, {}
  for _, query in ipairs(redis.call('ZRANGE', key.queries, 0, -1)) do
    local offsets = batches.offsets(query)
    if offsets then unread[query], skipped[query] = offsets.unread, offsets.skipped end
  end
  found.unread_offsets, found.skipped_offsets = {map = unread}, {map = skipped}
  local limits = {}
  for _, limit in ipairs(constants.LIMITS) do limits[limit] = number(redis.call('HGET', key.job, 'limit ' .. limit)) end
  found.limits, found.frames = {map = limits}, frames.counts()
  return reply.watermark_state(found)
end

-- Substreams: read some substreams, or all substreams of a small job.
-- args   members (unknown members are ignored), most (absent: 0). If slowest (a number) is present and the job has more
--        than most substreams: the holder, and the slowest active substreams, after (absent: from the start) a member and its
--        watermark
-- reply  config (JSON), median (see limits.median), is_complete (whether rows has all substreams: the job has at most that many),
--        rows (member, and the fields of tidegate.domain.views.SubstreamStatus), slowest (members in order)
local ROW_CLASSES = {'reported_rows', 'future_rows', 'on_time', 'updated', 'late', 'null_event_time', 'future'}

-- times: observed time and outages, by query
local function row_of(member, watermark, max_event_time, times, bound)
  local query = policy.query_of(member)
  if not times[query] then times[query] = {queries.observed_time(query)} end
  local observed, outage = unpack(times[query])
  local state_, last_event = idleness.state_of(query, member, observed, bound)
  local since = tonumber(redis.call('ZSCORE', key.since, member))
  if job.is_complete and state_ ~= 'done' then
    state_, since = 'done', job.completed + job.unattended
  elseif state_ == 'blocked' then
    since = last_event + outage + config.idle_timeout_ms
  elseif state_ == 'skewed' then
    since = nil
  end
  local row = {member = member, state = state_, since_ms = since, watermark = watermark or nil,
    max_event_time = max_event_time or nil, last_event_ms = last_event + outage,
    lag = state_ ~= 'done' and policy.lags_of({member})[1] or nil}
  local fields = {}
  for i, class in ipairs(ROW_CLASSES) do fields[i] = class .. ' ' .. member end
  for i, rows in ipairs(redis.call('HMGET', key.rows, unpack(fields))) do row[ROW_CLASSES[i]] = rows or nil end
  return {map = row}
end

-- Return the slowest substreams in order that are active and not skewed, without placeholders.
local function find_slowest()
  if args.slowest == 0 then return {} end
  local found, most = {}, args.slowest + redis.call('SCARD', key.missing_queries)
  for _, row in ipairs(limits.slowest_within(limits.skew_bound(), most, args.after)) do
    if #found < args.slowest and policy.name_of(row.member) ~= '' then found[#found + 1] = row.member end
  end
  return found
end

function commands.substreams()
  clock.load()
  local members, is_complete, slowest, rows = args.members, false, {}, {}
  if membership.count() <= (args.most or 0) then
    members, is_complete = membership.all(), true
  elseif args.slowest then
    slowest = find_slowest()
    members = {unpack(slowest)}
    local holder = emission.held_by()
    local name = holder and holder.substream and holder.query .. '/' .. holder.substream
    local is_listed = false
    for _, member in ipairs(slowest) do is_listed = is_listed or member == name end
    if not is_listed then members[#members + 1] = name end
  end
  members = membership.split(members)
  local watermarks, event_times, times = membership.watermarks(members), max_event_times.of(members), {}
  local bound = limits.skew_bound()
  for i, member in ipairs(members) do rows[i] = row_of(member, watermarks[i], event_times[i], times, bound) end
  return reply.watermark_state({config = redis.call('HGET', key.job, 'config'), median = limits.median(),
    is_complete = is_complete, rows = rows, slowest = slowest})
end

-- Queries: read the queries of a job with their latest batches.
-- reply  rows (the fields of tidegate.domain.views.QueryStatus; offsets and columns: see
--        batches.offsets)
function commands.queries()
  clock.load()
  local rows = {}
  for _, query in ipairs(redis.call('ZRANGE', key.queries, 0, -1)) do
    local of = queries.get(query)
    local pinned = of.latest and redis.call('HGET', key.pinned_watermarks(query), of.latest)
    local offsets, outputs = batches.offsets(query), {}
    for i, one in ipairs(of.outputs or {}) do outputs[i] = {map = one} end
    rows[#rows + 1] = {map = {query = query, query_id = of.query_id, run_id = of.run_id, batch_id = of.latest,
      batch_open = of.open or false, pinned_watermark = number(pinned), begun_ms = of.begun,
      idle_clock_ms = of.idle_clock and of.idle_clock + of.outage, last_contact_ms = of.last_contact,
      batch_released = (of.open and of.released) or false, retired = of.retired or false,
      tells_output = of.tells_output or false, output_watermark = of.output, outputs = outputs,
      offsets = offsets and {map = offsets}, columns = offsets and {map = batches.offset_columns(query)}}}
  end
  return reply.watermark_state({rows = rows})
end

-- Completeness: read the delays of a job.
-- args   members (unknown members are ignored; absent: the substream that holds the watermark)
-- reply  wait_sum, wait_weight, pool, merged (sketches), rows (member, lag in force, sketch)
function commands.completeness()
  clock.load()
  local members = args.members
  if not members then
    local held_by = emission.held_by()
    members = held_by and held_by.substream and {held_by.query .. '/' .. held_by.substream} or {}
  end
  local known, done = membership.known(members), bulk.zmscore(key.done, members)
  local sketches, lags, rows = bulk.hmget(key.delays, members), policy.lags_of(members), {}
  for i, member in ipairs(members) do
    local has_ended = done[i] or job.is_complete
    if known[i] then
      rows[#rows + 1] = {map = {member = member, lag = not has_ended and lags[i] or nil, sketch = sketch.reply(sketches[i])}}
    end
  end
  return reply.watermark_state({wait_sum = job.wait_sum and string.format('%.17g', job.wait_sum),
    wait_weight = job.wait_weight, pool = sketch.reply(redis.call('HGET', key.delays, 'pool') or nil),
    merged = sketch.reply(redis.call('HGET', key.delays, 'merged') or nil), rows = rows})
end

-- Late: read late rows by hour of event time, oldest hour first. A large result is split into several replies.
-- args   member ('': the job), after (last hour of the previous reply; absent: from the first hour)
-- reply  is_known (the member is a substream), counts (rows by class), hours (hour; late: hash of
--        '<disposition> <member>'; names, rows: rows of the member, of no substream, and of the members with late
--        rows), next (value of after for the next reply; absent: no more hours)
local ENTRIES_AT_ONCE = 5000
local LATE_CLASSES = {'on_time', 'updated', 'late', 'null_event_time', 'future', 'diverted'}

local function rows_of_hour(member, hour)
  local late, names, is_listed = redis.call('HGETALL', key.hour_late(hour)), {member, '?'}, {[member] = true}
  for i = 1, #late, 2 do
    local name = string.match(late[i], '^%a+ (.*)$')
    if not is_listed[name] then
      is_listed[name], names[#names + 1] = true, name
    end
  end
  return {hour = hour, late = late, names = names, rows = bulk.hmget(key.hour_rows(hour), names)}
end

function commands.late()
  clock.load()
  local member, hours, entries, following = args.member, {}, 0, nil
  for _, hour in ipairs(redis.call('ZRANGE', key.hours, args.after and '(' .. args.after or '-inf', '+inf', 'BYSCORE')) do
    if entries > ENTRIES_AT_ONCE then
      following = hours[#hours].map.hour
      break
    end
    local found = rows_of_hour(member, hour)
    hours[#hours + 1], entries = {map = found}, entries + #found.names
  end
  local fields, counts = {}, {}
  for i, class in ipairs(LATE_CLASSES) do fields[i] = member == '' and class or class .. ' ' .. member end
  local found = redis.call('HMGET', member == '' and key.job or key.rows, unpack(fields))
  for i, class in ipairs(LATE_CLASSES) do counts[class] = found[i] or nil end
  return reply.watermark_state({is_known = membership.known({member})[1] or nil,
    counts = {map = counts}, hours = hours, next = following})
end

-- History: read the records of a job, latest first.
-- args   first (a time), last ('+', a time, or '(' and an id), most (number of records)
-- reply  records, oldest (the oldest record kept; empty: no records); records are entries of the stream
function commands.history()
  clock.load()
  return reply.watermark_state({
    records = redis.call('XREVRANGE', key.journal, args.last, args.first, 'COUNT', args.most),
    oldest = redis.call('XRANGE', key.journal, '-', '+', 'COUNT', 1)})
end

-- Frames: read frames, latest first (see frames.read).
-- args   first, last, most, is_any
function commands.frames()
  clock.load()
  return reply.watermark_state(frames.read(args.first, args.last, args.most, args.is_any))
end

-- Learned: read what predicts when frames are complete (see frames.learned).
-- args   interval_ms (of the samples)
-- reply  also samples (texts, see timeline.record)
function commands.learned()
  clock.load()
  local found = frames.learned()
  found.samples = redis.call('LRANGE', key.timeline(args.interval_ms), 0, -1)
  return reply.watermark_state(found)
end

-- Timeline: read the samples of a job, oldest first.
-- args   interval_ms, most (number of samples)
-- reply  samples (texts, see timeline.record)
function commands.timeline()
  clock.load()
  return reply.watermark_state({samples = redis.call('LRANGE', key.timeline(args.interval_ms), -args.most, -1)})
end

-- Distribution: count the substreams by watermark, in bins of equal width.
-- args   more_than (a job with at most this number of substreams has no distribution), widths (of a bin in
--        milliseconds, ascending), max_bins
-- reply  width (absent: no distribution), start (of the first bin), active, others (columns of counts), earlier (number
--        of skewed, idle and done substreams before the first bin)

-- Return the lowest watermark from a bound on (absent: of all), and the highest watermark in some sets.
local function range_of(sets, bound)
  local low, high
  for _, set in ipairs(sets) do
    local from = bound and text(bound - set[2]) or '(-inf'
    local first = redis.call('ZRANGE', set[1], from, '+inf', 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')[2]
    local _, last = values.highest_of(set[1])
    if first and (not low or first + set[2] < low) then low = first + set[2] end
    if last and (not high or last + set[2] > high) then high = last + set[2] end
  end
  return low, high
end

local function width_for(span)
  for _, width in ipairs(args.widths) do
    if span < width * (args.max_bins - 1) then return width end
  end
  local width = args.widths[#args.widths]
  while span >= width * (args.max_bins - 1) do width = 2 * width end
  return width
end

local function count(sets, from, to)
  local sum = 0
  if from >= to then return sum end
  for _, set in ipairs(sets) do
    sum = sum + redis.call('ZCOUNT', set[1], text(from - set[2]), '(' .. text(to - set[2]))
  end
  return sum
end

function commands.distribution()
  clock.load()
  local sets = membership.counting_sets()
  local frozen = {{key.frozen, 0}, {key.idle_constant, 0}, {key.idle_advancing, job.evaluated or 0}}
  if job.is_complete then  -- all substreams are done
    for _, set in ipairs(sets) do frozen[#frozen + 1] = set end
    sets = {}
  end
  local bound = not job.is_complete and limits.skew_bound() or nil
  local low, high = range_of(sets, bound)
  local lowest_frozen, highest_frozen = range_of(frozen)
  low = low or lowest_frozen
  if not low or membership.count() <= args.more_than then return reply.watermark_state() end
  high = math.max(high or highest_frozen, highest_frozen or high)
  local width = width_for(high - low)
  local start, active, others = low - values.modulo(low, width), {}, {}
  for from = start, high, width do
    local to, skewed_to = from + width, math.min(bound or from, from + width)
    active[#active + 1] = count(sets, math.max(from, skewed_to), to)
    others[#others + 1] = count(frozen, from, to) + count(sets, from, skewed_to)
  end
  local earlier = 0
  for _, group in ipairs(bound and {frozen, sets} or {frozen}) do
    for _, set in ipairs(group) do
      earlier = earlier + redis.call('ZCOUNT', set[1], '(-inf', '(' .. text(start - set[2]))
    end
  end
  return reply.watermark_state({width = width, start = start, active = active, others = others, earlier = earlier})
end

-- Explain: return the data of an explanation: the job after a sweep, and its holders, lowest first. Active substreams and
-- open batches are those that may be among the first holders.
-- args   most (number of holders), what_if_skew_ms (another limit on skew; absent: none), what_if_target (whether the reply has
--        the measured arrival delays)
-- reply  config (JSON), unattended_ms, max_watermark, coalesced_watermark_since_ms, watermark_since_ms,
--        retention (timestamp_history), holds, open_batches, substreams, queries (of these batches and substreams),
--        bounds (see limits.first_holders; absent: no limit), passed (see limits.passed_now), arrivals (those of
--        tidegate.domain.job.Arrivals, and proven_ms: see limits.proven_until), skew (see limits.what_if_skew), frame (bounds of
--        the first frame that is not finished; absent: no frames, or a complete job)
function commands.explain()
  local most = args.most
  reply.load()
  evaluate.sweep_for_read()

  local listed, is_listed = {}, {}
  local function list_query(query)
    if is_listed[query] or query == '' then return end
    is_listed[query] = true
    local of = queries.get(query)
    local offsets = batches.offsets(query)
    listed[#listed + 1] = {map = {query = query, outage_ms = of.outage, idle_clock_ms = of.idle_clock,
      offsets = offsets and {map = offsets}, columns = offsets and {map = batches.offset_columns(query)},
      last_seen_ms = number(redis.call('ZSCORE', key.last_seen, query))}}
  end

  local bounds, behind = limits.first_holders(most)
  local rows = {}
  for i = 1, #behind do
    local one = behind[i]
    local query = policy.query_of(one.member)
    list_query(query)
    local is_advancing = redis.call('ZSCORE', key.advancing, one.member)
    local change = is_advancing and job.observed_now + 1 or number(redis.call('ZSCORE', key.next_change, one.member))
    rows[i] = {map = {member = one.member, watermark = one.watermark > -math.huge and one.watermark or nil,
      max_event_time = max_event_times.of({one.member})[1] or nil,
      last_event_ms = number(redis.call('ZSCORE', key.last_events(query), one.member)),
      next_change_ms = change and change > -math.huge and math.min(change, values.HIGHEST + 1) or nil}}
  end

  local open = {}
  local pins = redis.call('ZRANGE', key.open_pins, 0, most - 1, 'WITHSCORES')
  for i = 1, #pins, 2 do
    local query = pins[i]
    list_query(query)
    local of = queries.get(query)
    open[#open + 1] = {map = {query = query, pinned_watermark = number(pins[i + 1]), batch_id = of.latest,
      begun_ms = of.begun, begun_observed_ms = number(redis.call('ZSCORE', key.open_batches, query))}}
  end

  local arrivals
  if args.what_if_target and job.arrivals and job.arrivals.last_end then
    local of = job.arrivals
    arrivals = {map = {first_end = of.first_end, last_end = of.last_end, rows = of.rows, too_old = of.too_old,
      learned = of.learned, sketch = sketch.reply(redis.call('HGET', key.delays, 'arrivals') or nil),
      proven_ms = limits.proven_until()}}
  end
  local what_if = args.what_if_skew_ms and not job.is_complete and limits.what_if_skew(args.what_if_skew_ms, function(minimum)
    return throttle.candidate(holds.cap(minimum))
  end)
  return reply.finish({config = redis.call('HGET', key.job, 'config'), unattended_ms = job.unattended,
    arrivals = arrivals, skew = what_if or nil, max_watermark = job.max_watermark, coalesced_watermark_since_ms = job.coalesced_watermark_since,
    watermark_since_ms = job.watermark_since, retention = job.retention and timestamp_history.line(job.retention),
    holds = holds.in_order(), open_batches = open, substreams = rows, queries = listed, bounds = bounds,
    passed = limits.passed_now(),
    frame = not job.is_complete and frames.first_unfinished() or nil})
end

-- Watch: sweep a job, and return its records after a record that the client has.
-- args   after (id of that record; absent: none), most (number of records)
-- reply  newest (id of the newest record), known (the record that the client has; empty if the history no longer
--        keeps it, and later records may be lost), records (the later records); records are entries of the stream
function commands.watch()
  reply.load()
  evaluate.sweep_for_read()
  local found = reply.finish()
  local known = args.after and redis.call('XRANGE', key.journal, args.after, args.after) or {}
  found.map.newest = redis.call('XREVRANGE', key.journal, '+', '-', 'COUNT', 1)[1][1]
  found.map.known = known
  found.map.records = #known > 0 and redis.call('XRANGE', key.journal, '(' .. args.after, '+', 'COUNT', args.most) or {}
  return found
end
