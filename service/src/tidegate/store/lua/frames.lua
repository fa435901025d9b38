-- @include evaluate
-- @include calendar
-- The records of a job's frames, as in tidegate.domain.frames: which frames are complete, what was left out, and what
-- changed since.
--
-- job.frames has the fields of tidegate.domain.job.FrameLog, except its tables. key.frame_records has the records by the
-- start of their first frame, key.frame_rows the rows by frame, and key.frame_generations the generations after the first.
local number, text, highest, above = values.number, values.text, values.highest, values.above
local job, config = state.job, state.config
local frames = {}
local number_counted
local CLASSES = {'rows', 'updated', 'dropped', 'diverted'}
local EXAMINED = 1000  -- substreams that are compared with the end of a frame, of those that were made idle, and of others
local ROWS_AT_ONCE = 1000  -- rows of frames that a command forgets

local function start_anew(base, reason)
  redis.call('UNLINK', key.frame_records, key.frame_starts, key.frame_rows, key.frames_counted, key.frame_changes,
    key.frame_added, key.frame_generations, key.frame_losses, key.frames_unproven, key.writing, key.completions)
  job.frames = {base = base, reason = base > 0 and reason or '', latest_generation = base, totals = {},
    revision = job.revision}
end

-- Return the log of a job that declares frames. A previous version that resets the job removes it.
local function log_of()
  if not job.frames then start_anew(0) end
  return job.frames
end

local function latest() return highest(job.max_event_time, job.max_watermark) end

-- The declaration

local function declared_in(found) return found and found.frames and found.frames.declared end

-- Start new frames for a job whose declaration of frames has changed. before: the configuration before; nil: a new job.
function frames.declare(before)
  local declared = config.frames
  if declared_in(before) == (declared and declared.declared) then return end
  local base = 0
  if job.frames then base = math.max(job.frames.base, job.frames.latest_generation) end
  start_anew(base, 'config')
  if not declared then return end
  job.frames.uncounted_up_to = latest()
  if job.watermark then
    job.frames.unread = calendar.number_of(math.min(job.watermark, job.written_watermark or job.watermark))
    job.frames.unfinished = job.frames.unread
  end
  if declared_in(before) or job.watermark then
    local every = declared.unit or text(declared.every)
    history.write('frames', 'every', every, 'offset_ms', declared.offset_ms, 'time_zone', declared.time_zone)
  end
end

-- Forget the frames of the previous incarnation, whose log is `before` (nil: none). The generations of the next records are
-- higher. up_to: the max event time before the reset; the queries may not read the rows below it again.
function frames.reset(before, up_to)
  if before then start_anew(before.latest_generation, 'reset') end
  if config.frames then log_of().uncounted_up_to = up_to end
end

-- Records

local function packed_record(start)
  local packed = redis.call('HGET', key.frame_records, text(start))
  return packed and cmsgpack.unpack(packed) or nil
end

local function store(record)
  redis.call('HSET', key.frame_records, text(record.start), cmsgpack.pack(record))
  redis.call('ZADD', key.frame_starts, record.start, text(record.start))
end

-- Return the record of the frame that starts at a time; nil if the job has no such record.
local function record_of(start)
  local first = redis.call('ZRANGE', key.frame_starts, start, '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, 1)[1]
  local record = first and packed_record(number(first))
  return record and start < record.finish and record or nil
end

-- Rows

local function fields_of(start)
  local fields = {}
  for i, class in ipairs(CLASSES) do fields[i] = text(start) .. ' ' .. class end
  return fields
end

-- Return the numbers of rows of a frame in one of the hashes, by class.
local function rows_in(name, start)
  local found, rows = redis.call('HMGET', name, unpack(fields_of(start))), {}
  for i, class in ipairs(CLASSES) do rows[class] = found[i] or '0' end
  return rows
end

local function add_rows(name, start, counts)
  for i, field in ipairs(fields_of(start)) do
    if counts[i] ~= '0' then bulk.add(name, field, counts[i]) end
  end
end

local function forget_rows(start)
  redis.call('HDEL', key.frame_rows, unpack(fields_of(start)))
  redis.call('HDEL', key.frame_added, unpack(fields_of(start)))
  redis.call('HDEL', key.frame_generations, text(start))
  redis.call('ZREM', key.frame_changes, text(start))
  redis.call('ZREM', key.frames_counted, text(start))
end

-- Return the number of frames whose rows are counted, without those that the job has forgotten, but not yet removed.
function number_counted()
  local first = redis.call('ZRANGE', key.frame_starts, 0, 0)[1] or '-inf'
  return redis.call('ZCOUNT', key.frames_counted, first, '+inf')
end

-- Add the rows of a batch of a query to their frames. rows: for each frame, a time, and texts with its rows, updated rows and
-- late rows. latest_time: the latest event time that is accepted (nil: any).
function frames.count_rows(query, rows, disposition, latest_time)
  if not config.frames or #rows == 0 then return end
  local log, writing, is_listed = log_of(), {}, {}
  local most, counted = 2 * constants.FRAMES_COUNTED, redis.call('ZCARD', key.frames_counted)
  for _, row in ipairs(rows) do
    if not latest_time or row.time <= latest_time then
      local start, number_ = calendar.frame_of(row.time)
      local is_finished = log.unfinished and number_ < log.unfinished
      local is_kept = not is_finished or record_of(start) ~= nil
      if is_kept and counted >= most and number_counted() >= most
        and not redis.call('ZSCORE', key.frames_counted, text(start)) then
        log.uncounted_up_to, is_kept = highest(start, log.uncounted_up_to), false
      end
      if is_kept then
        local is_dropped = disposition == 'dropped'
        local counts = {row.rows, row.updated, is_dropped and row.late or '0', is_dropped and '0' or row.late}
        add_rows(key.frame_rows, start, counts)
        counted = counted + redis.call('ZADD', key.frames_counted, start, text(start))
        if is_finished then
          redis.call('ZADD', key.frame_changes, 'NX', job.observed_now + config.frames.correction_delay_ms, text(start))
          add_rows(key.frame_added, start, counts)
        end
        -- Frames that end above the output watermark of the query wait for that.
        local is_passed = is_finished or above(query.output, calendar.start_of(number_ + 1) - 1)
        if log.unread and number_ < log.unread and is_passed and not is_listed[start] then
          is_listed[start], writing[#writing + 1] = true, start
        end
      end
    end
  end
  if #writing == 0 or not query.tells_output then return end
  local before = redis.call('HGET', key.writing, query.name)  -- of the pieces of the batch before
  for _, start in ipairs(before and cmsgpack.unpack(before) or {}) do
    if not is_listed[start] then writing[#writing + 1] = start end
  end
  table.sort(writing)
  for at = #writing, constants.WRITING_KEPT + 1, -1 do writing[at] = nil end
  redis.call('HSET', key.writing, query.name, cmsgpack.pack(writing))
end

-- Return the frames whose results queries have not written, as names of true fields, and the number of the first one from
-- the first frame that is not finished on (nil: none).
local function unwritten()
  local found, first = {}, nil
  for _, packed in ipairs(redis.call('HVALS', key.writing)) do
    for _, start in ipairs(cmsgpack.unpack(packed)) do
      found[start] = true
      local number_ = calendar.number_of(start)
      if job.frames.unfinished and number_ >= job.frames.unfinished and not (first and first <= number_) then first = number_ end
    end
  end
  return found, first
end

-- Record that a query has written the results of its latest batch, or never will.
function frames.wrote_results(query) if config.frames then redis.call('HDEL', key.writing, query.name) end end

-- Record that rows up to the max event time of the job may be committed that no client has counted. up_to: another event
-- time of such rows (nil: none).
function frames.miss_rows(up_to)
  if config.frames then
    log_of().uncounted_up_to = highest(highest(latest(), up_to), job.frames.uncounted_up_to)
  end
end

-- Exclusions

local function sort_named(named)
  table.sort(named, function(a, b)
    local x, y = a.watermark or -math.huge, b.watermark or -math.huge
    if x ~= y then return x < y end
    return values.sorts_before(a.substream, b.substream)
  end)
end

-- Return an exclusion of substreams (each with its watermark); nil if the count is 0.
local function exclusion(reason, count, named)
  if count == 0 then return nil end
  sort_named(named)
  local first = {}
  for i = 1, math.min(#named, constants.NAMES_KEPT) do first[i] = named[i] end
  return {reason = reason, count = count, watermark = first[1] and first[1].watermark, substreams = first}
end

local function counting_below(group, finish)
  local count, rows = limits.below(group, finish)
  local named = {}
  for i, row in ipairs(rows) do
    named[i] = {substream = row.member, watermark = row.watermark > -math.huge and row.watermark or nil}
  end
  return exclusion(group.limit, count, named)
end

-- Record that a query has read all input of its idle substreams up to a processing time. caught_up: the only members whose
-- input it has read (nil: all); it confirms nothing if others are idle.
function frames.confirm_silence(query, time, caught_up)
  if not config.frames then return end
  if caught_up then
    local left, seen = redis.call('ZCARD', key.idle(query.name)), {}
    for i, is_idle in ipairs(left > 0 and bulk.zmscore(key.idle(query.name), caught_up) or {}) do
      if is_idle and not seen[caught_up[i]] then left, seen[caught_up[i]] = left - 1, true end
    end
    if left > 0 then return end
  end
  query.confirmed, query.confirmed_until = job.observed_now, highest(query.confirmed_until, time)
end

-- Return why an idle substream of a query does not count, if no operator and no timeout of the query is the reason: 'silent' if
-- its query has confirmed that it has no data. read_ms: when W has passed the frames; only later evidence confirms it (nil: W
-- passes them now).
local function reason_of(name, read_ms)
  if job.is_complete then return 'silent' end  -- the end of the input confirms it
  if name == '' then return 'idle_timeout_ms' end
  local query = queries.get(name)
  if not query.confirmed then return 'silent_query' end
  if read_ms then return query.confirmed_until >= read_ms and 'silent' or 'silent_query' end
  local patience = math.max(config.idle_timeout_ms or 0, constants.CONFIRMED_MS)
  return job.observed_now - query.confirmed <= patience and 'silent' or 'silent_query'
end

-- Return the idle substreams below the end of frames by reason. Each reason has a count and named substreams. Of many
-- substreams, those that are not examined count, too.
local function idle_below(finish, read_ms)
  local found = {}
  local function add(reason, count, member, watermark)
    local of = found[reason] or {count = 0, named = {}}
    found[reason], of.count = of, of.count + count
    if member then of.named[#of.named + 1] = {substream = member, watermark = watermark or nil} end
  end
  local forced = redis.call('ZRANGE', key.forced_idle, 0, EXAMINED - 1, 'WITHSCORES')
  local members, reasons = {}, {}
  for i = 1, #forced, 2 do
    members[#members + 1], reasons[#reasons + 1] = forced[i], tonumber(forced[i + 1]) == 1 and 'idle' or 'query_timeout_ms'
  end
  for i, watermark in ipairs(membership.watermarks(members)) do
    if not watermark or watermark < finish then add(reasons[i], 1, members[i], watermark) end
  end
  for reason, score_of in pairs({query_timeout_ms = 0, idle = 1}) do
    local rest = redis.call('ZCOUNT', key.forced_idle, score_of, score_of)
    for _, of in ipairs(reasons) do if of == reason then rest = rest - 1 end end
    if rest > 0 then add(reason, rest) end
  end
  local names, left = redis.call('SMEMBERS', key.query_names), EXAMINED
  table.sort(names, values.sorts_before)
  table.insert(names, 1, '')
  for _, query in ipairs(names) do
    local idle = left > 0 and redis.call('ZRANGE', key.idle(query), 0, left - 1) or {}
    local reason, is_forced = #idle > 0 and reason_of(query, read_ms), bulk.zmscore(key.forced_idle, idle)
    for i, watermark in ipairs(membership.watermarks(idle)) do
      if not is_forced[i] and (not watermark or watermark < finish) then add(reason, 1, idle[i], watermark) end
    end
    left = left - #idle
    if left <= 0 then
      local rest = redis.call('ZCARD', key.idle(query)) - #idle
      if rest > 0 then add(reason_of(query, read_ms), rest) end
    end
  end
  return found
end

-- Return what does not count, or has not reached the end of frames that W has passed, without losses; and the substreams
-- that are silent. read_ms: see reason_of().
local function exclusions(finish, read_ms)
  local found, idle = {}, idle_below(finish, read_ms)
  local function add(one) found[#found + 1] = one end
  -- The end of the input ends all substreams that count. Rows that seldom arrive are no exclusion.
  if not job.is_complete and above(finish, limits.arrival_bound()) then
    local behind = config.max_retention_ms and 'max_retention_ms' or 'behind'
    for _, group in ipairs(limits.passed(behind)) do add(counting_below(group, finish)) end
  end
  for _, reason in ipairs({'query_timeout_ms', 'idle', 'idle_timeout_ms', 'silent_query'}) do
    if idle[reason] then add(exclusion(reason, idle[reason].count, idle[reason].named)) end
  end
  local released = redis.call('ZRANGE', key.open_batches, '+inf', '+inf', 'BYSCORE')
  table.sort(released, values.sorts_before)
  for _, name in ipairs(released) do
    local query = queries.get(name)
    local pinned = number(redis.call('HGET', key.pinned_watermarks(name), query.latest))
    if not above(pinned, finish - 1) then
      add({reason = 'max_batch_hold_ms', count = 1, watermark = pinned, substreams = {}, query = name,
        batch_id = query.latest})
    end
  end
  return found, idle.silent and exclusion('silent', idle.silent.count, idle.silent.named)
end

local function losses()
  local packed = job.frames.has_losses and redis.call('GET', key.frame_losses)
  return packed and cmsgpack.unpack(packed) or {}
end

local function first_of(...)
  local first = {}
  for _, list in ipairs({...}) do
    for _, one in ipairs(list) do first[#first + 1] = one end
  end
  return first
end

local function cut_names(named)
  for at = #named, constants.NAMES_KEPT + 1, -1 do named[at] = nil end
  return named
end

-- Merge the first loss that has the reason of a later one with that one.
local function merge_two(all)
  for at = 1, #all do
    for other = at + 1, #all do
      if all[at].reason == all[other].reason then
        local a, b = all[at], table.remove(all, other)
        a.count, a.up_to = a.count + b.count, highest(a.up_to, b.up_to)
        a.watermark = a.watermark and b.watermark and math.min(a.watermark, b.watermark)
        a.substreams = first_of(a.substreams, b.substreams)
        sort_named(a.substreams)
        cut_names(a.substreams)
        if a.partitions or b.partitions then a.partitions = cut_names(first_of(a.partitions or {}, b.partitions or {})) end
        if a.query == b.query then a.batch_id = b.batch_id else a.query, a.batch_id = nil, nil end
        return
      end
    end
  end
end

-- Record an exclusion that concerns all frames up to a max event time (default: now) that are not finished, or not proven.
function frames.lose(found, up_to)
  up_to = up_to or latest()
  if not config.frames or not up_to then return end
  log_of().has_losses, found.up_to = true, up_to
  local all = losses()
  all[#all + 1] = found
  if #all > constants.LOSSES_KEPT then merge_two(all) end
  redis.call('SET', key.frame_losses, cmsgpack.pack(all))
end

-- Return a summary of removed substreams, which frames.add_removed() extends and frames.lose_removed() records.
function frames.removed() return {count = 0, named = {}, up_to = latest()} end

-- removed: nil if a previous version has begun the command.
function frames.add_removed(removed, members)
  if not config.frames or not removed then return end
  local watermarks, done = membership.watermarks(members), bulk.zmscore(key.done, members)
  for i, member in ipairs(members) do
    if not done[i] then
      removed.count = removed.count + 1
      removed.named[#removed.named + 1] = {substream = member, watermark = watermarks[i] or nil}
    end
  end
  sort_named(removed.named)
  cut_names(removed.named)
end

function frames.lose_removed(removed, action)
  if not removed then return end
  local found = exclusion(action, removed.count, removed.named)
  if found and removed.up_to then frames.lose(found, removed.up_to) end
end

-- The step after each command

local function concerns(one, start, finish)
  return (not one.watermark or one.watermark < finish) and (not one.up_to or start <= one.up_to)
end

local function batches_of_queries()
  local names, found = redis.call('ZRANGE', key.queries, 0, -1), {}
  table.sort(names, values.sorts_before)
  for i = 1, math.min(#names, constants.NAMES_KEPT) do
    local query = queries.get(names[i])
    local batch_id = query.latest
    if query.open then batch_id = query.previous end
    found[i] = {query = names[i], batch_id = batch_id}
  end
  return found
end

-- Return the versions of the first tables that queries write, sorted by query and table.
local function table_versions()
  local changes = state.changes
  if changes.table_versions then return changes.table_versions end
  local names, found = redis.call('ZRANGE', key.queries, 0, -1), {}
  table.sort(names, values.sorts_before)
  for _, name in ipairs(names) do
    local outputs = {unpack(queries.get(name).outputs or {})}
    table.sort(outputs, function(a, b) return values.sorts_before(a.table, b.table) end)
    for _, one in ipairs(outputs) do
      if #found == constants.NAMES_KEPT then break end
      found[#found + 1] = {query = name, table = one.table, version = one.version}
    end
  end
  changes.table_versions = found
  return found
end

-- Forget the first records while the job has too many records or counts, or old ones; keep unfinished ones.
local function trim()
  local log = job.frames
  local unfinished, left = calendar.start_of(log.unfinished), redis.call('ZCARD', key.frame_starts)
  local oldest, counted = job.now - constants.FRAME_RECORDS_KEPT_MS, number_counted()
  for _, first in ipairs(redis.call('ZRANGE', key.frame_starts, 0, constants.FINISHED_AT_ONCE - 1)) do
    local record = packed_record(number(first))
    local is_old = not record or left > constants.FRAME_RECORDS_KEPT or counted > constants.FRAMES_COUNTED
      or record.read_ms < oldest
    if not is_old or number(first) >= unfinished then break end
    redis.call('HDEL', key.frame_records, first)
    redis.call('ZREM', key.frame_starts, first)
    left, counted = left - 1, number_counted()
  end
  local first = number(redis.call('ZRANGE', key.frame_starts, 0, 0)[1]) or unfinished
  local old = redis.call('ZRANGE', key.frames_counted, '-inf', '(' .. text(first), 'BYSCORE', 'LIMIT', 0, ROWS_AT_ONCE)
  for _, start in ipairs(old) do forget_rows(number(start)) end
end

-- Return the number of the first frame that W has not passed. If the job has no record yet, its first frame is the first
-- one with rows; default: without rows.
local function first_number(default)
  local log = job.frames
  if log.has_begun or log.uncounted_up_to and log.unread then return log.unread end
  local lowest = number(redis.call('ZRANGE', key.frames_counted, 0, 0)[1])
  local first = lowest and calendar.number_of(lowest) or default or log.unread
  return first and math.max(log.unread or first, first)
end

-- Return the numbers at which ranges of frames begin that the same exclusions concern, and the last number.
local function parts(first, last, found)
  local cuts, is_cut = {first, last}, {[first] = true, [last] = true}
  local function cut(number_)
    if number_ > first and number_ < last and not is_cut[number_] then
      is_cut[number_], cuts[#cuts + 1] = true, number_
    end
  end
  for _, one in ipairs(found) do
    if one.watermark then cut(calendar.number_of(one.watermark)) end
    if one.up_to then cut(calendar.number_of(one.up_to) + 1) end
  end
  table.sort(cuts)
  return cuts
end

-- Make the records of the frames that W has passed.
local function read()
  local log = job.frames
  local reached = calendar.number_of(job.watermark)
  if not log.unread then
    local lowest = number(redis.call('ZRANGE', key.frames_counted, 0, 0)[1])
    log.unread = lowest and math.min(reached, calendar.number_of(lowest)) or reached
    log.unfinished = log.unread
  end
  if not log.has_begun then
    log.unread = math.min(first_number(reached), reached)
    log.unfinished = log.unread
  end
  if reached <= log.unread then return end
  log.has_begun = true
  local start, finish = calendar.start_of(log.unread), calendar.start_of(reached)
  local found, silent = exclusions(finish)
  for _, loss in ipairs(losses()) do
    if concerns(loss, start, finish) then found[#found + 1] = loss end
  end
  local cuts, of_queries = parts(log.unread, reached, found), batches_of_queries()
  for i = 1, #cuts - 1 do
    local first, last, concerning = calendar.start_of(cuts[i]), calendar.start_of(cuts[i + 1]), {}
    for _, one in ipairs(found) do
      if concerns(one, first, last) then concerning[#concerning + 1] = one end
    end
    store({start = first, finish = last, watermark = job.watermark, read_ms = job.now, generation = log.base + 1,
      reason = log.reason, exclusions = concerning, silent = silent, queries = of_queries,
      uncounted_up_to = log.uncounted_up_to, record = state.changes.movement})
  end
  log.latest_generation = math.max(log.latest_generation, log.base + 1)
  log.unread = reached
  trim()
end

-- Return how many frames of a record, of those from a number to another, have no row. Frames that may have uncounted rows
-- do not count.
local function number_without_rows(record, first, last)
  if record.uncounted_up_to then
    first = math.min(math.max(first, calendar.number_of(record.uncounted_up_to) + 1), last)
  end
  if first == last then return 0 end
  return last - first
    - redis.call('ZCOUNT', key.frames_counted, calendar.start_of(first), '(' .. text(calendar.start_of(last)))
end

local function count(state_of, amount) job.frames.totals[state_of] = (job.frames.totals[state_of] or 0) + amount end

-- Keep the completions of frames from a number to another that are finished now. Frames that ended before the job finished
-- its first one are of a backfill.
local function complete(first, last)
  job.frames.began = job.frames.began or job.now
  first = math.max(first, calendar.number_of(job.frames.began), last - constants.COMPLETIONS_KEPT)
  for number_ = first, last - 1 do
    redis.call('RPUSH', key.completions, text(calendar.start_of(number_ + 1)) .. ' ' .. text(job.now))
  end
  if first < last then redis.call('LTRIM', key.completions, -constants.COMPLETIONS_KEPT, -1) end
end

-- Count the delay of a finished frame.
local function measure(delay)
  local log, place = job.frames, 1
  while constants.DELAYS_MS[place] and constants.DELAYS_MS[place] < delay do place = place + 1 end
  log.delays = log.delays or {}
  for at = 1, #constants.DELAYS_MS + 1 do log.delays[at] = log.delays[at] or 0 end
  log.delays[place] = log.delays[place] + 1
  log.delay_sum_ms = (log.delay_sum_ms or 0) + delay
end

-- Return whether removed substreams, or lost offsets, may have had rows of the frames of a record.
local function is_lost(record)
  for _, one in ipairs(record.exclusions) do
    if one.up_to then return true end
  end
  for _, loss in ipairs(losses()) do
    if concerns(loss, record.start, record.finish) then return true end
  end
  return false
end

-- Write the record of the history about frames of a record.
local function tell(record, state_of, amount, empty)
  if amount == 0 then return end
  history.write('frame', 'start', record.start, 'end', record.finish, 'count', amount,
    'empty', empty and empty > 0 and empty or nil, 'generation', record.generation, 'state', state_of,
    'reason', record.reason)
end

-- Tell of finished frames, and count them.
local function tell_finished(record)
  local first, last = calendar.number_of(record.start), calendar.number_of(record.finish)
  local without = number_without_rows(record, first, last)
  local with_rows = last - first - without
  if last - first <= constants.MOST_MEASURED then
    for number_ = first, last - 1 do measure(math.max(job.now - calendar.start_of(number_ + 1), 0)) end
  end
  complete(first, last)
  if #record.exclusions > 0 then
    tell(record, 'complete_with_exclusions', with_rows)
    count('complete_with_exclusions', with_rows)
    if without > 0 and not is_lost(record) then
      redis.call('ZADD', key.frames_unproven, record.start, text(record.start))
      job.frames.has_unproven = true
    end
  else
    tell(record, with_rows > 0 and 'complete' or 'empty', last - first, without)
    count('complete', with_rows)
    count('empty', without)
  end
end

-- Finish the frames that the written watermark has passed, unless a query has not written their results.
local function finish()
  local log = job.frames
  local reached = math.min(calendar.number_of(job.written_watermark), log.unread)
  if reached <= log.unfinished then return end
  local _, waiting = unwritten()
  reached = math.min(reached, waiting or reached)
  for _ = 1, constants.FINISHED_AT_ONCE do
    if reached <= log.unfinished then return end
    local record = record_of(calendar.start_of(log.unfinished))
    if not record then  -- another program has removed it
      log.unfinished = reached
      return
    end
    local last = record.finish
    record.finish = math.min(last, calendar.start_of(reached))
    if record.finish < last then
      local first = record.start
      record.start, record.finish, last = record.finish, last, record.finish
      store(record)
      record.start, record.finish = first, last
    end
    record.finished_ms, record.uncounted_up_to, record.outputs = job.now, log.uncounted_up_to, table_versions()
    if record.generation <= log.base then  -- the watermark was restored: an event about the frame may exist
      record.generation, record.reason = log.base + 1, log.reason
      log.latest_generation = math.max(log.latest_generation, record.generation)
    end
    store(record)
    log.unfinished = calendar.number_of(record.finish)
    tell_finished(record)
  end
  log.has_more = reached > log.unfinished or nil
end

-- Return whether the substream that kept frames from being proven empty is still excluded from them: this is the case in most
-- commands, and all others need not be examined.
local function is_still_excluded(finish)
  local witness = job.frames.witness
  if not witness or not redis.call('ZSCORE', key.forced_idle, witness) then return false end
  local watermark = membership.watermarks({witness})[1]
  return not watermark or watermark < finish
end

-- Prove that frames without rows are empty, now that each excluded substream has reached their end. Those that may have rows
-- that no client has counted become complete with exclusions.
local function prove()
  local log = job.frames
  if not log.has_unproven then return end
  for _ = 1, constants.FINISHED_AT_ONCE do
    local first_start = redis.call('ZRANGE', key.frames_unproven, 0, 0)[1]
    if not first_start then
      log.has_unproven, log.witness = nil, nil
      return
    end
    local record = packed_record(number(first_start))
    if record and not is_lost(record) then
      if is_still_excluded(record.finish) then return end
      local found = exclusions(record.finish, record.read_ms)
      if #found > 0 then
        log.witness = found[1].substreams[1] and found[1].substreams[1].substream
        return
      end
      local first, last = calendar.number_of(record.start), calendar.number_of(record.finish)
      local before = number_without_rows(record, first, last)
      record.proven_ms, record.uncounted_up_to = job.now, log.uncounted_up_to
      store(record)
      local empty = number_without_rows(record, first, last)
      tell(record, 'complete_with_exclusions', before - empty)
      tell(record, 'empty', empty, empty)
      count('complete_with_exclusions', before - empty)
      count('empty', empty)
    end
    redis.call('ZREM', key.frames_unproven, first_start)
  end
  log.has_more = true
end

-- Return the state of a frame that has a record.
local function state_of(record, start, finish_)
  if not record.finished_ms then return 'open' end
  local is_excluded = false
  for _, one in ipairs(record.exclusions) do is_excluded = is_excluded or concerns(one, start, finish_) end
  local is_uncounted = record.uncounted_up_to and start <= record.uncounted_up_to
  if is_uncounted or redis.call('ZSCORE', key.frames_counted, text(start)) then
    return is_excluded and 'complete_with_exclusions' or 'complete'
  end
  return is_excluded and not record.proven_ms and 'open' or 'empty'
end

-- Add a generation to those of a frame. Return its number.
local function add_generation(record, start, added)
  local packed = redis.call('HGET', key.frame_generations, text(start))
  local of_frame = packed and cmsgpack.unpack(packed) or {}
  local before = #of_frame > 0 and of_frame[#of_frame].generation or record.generation
  added.generation, added.at_ms, added.reason = math.max(before, job.frames.base) + 1, job.now, 'rows'
  added.outputs = table_versions()
  of_frame[#of_frame + 1] = added
  if #of_frame > constants.GENERATIONS_KEPT then
    for _, class in ipairs(CLASSES) do of_frame[2][class] = text(of_frame[1][class] + of_frame[2][class]) end
    table.remove(of_frame, 1)
  end
  redis.call('HSET', key.frame_generations, text(start), cmsgpack.pack(of_frame))
  return added.generation
end

-- Make a new generation of a frame from the rows that have changed it.
local function make_generation(start)
  local log, record, added = job.frames, record_of(start), rows_in(key.frame_added, start)
  redis.call('ZREM', key.frame_changes, text(start))
  redis.call('HDEL', key.frame_added, unpack(fields_of(start)))
  if not record then return end
  local generation = add_generation(record, start, added)
  log.latest_generation = math.max(log.latest_generation, generation)
  count('corrected', 1)
  local finish_ = calendar.start_of(calendar.number_of(start) + 1)
  local late = added.dropped + added.diverted
  history.write('frame', 'start', start, 'end', finish_, 'count', 1, 'generation', generation,
    'state', state_of(record, start, finish_), 'reason', 'rows', 'on_time', added.rows - added.updated - late,
    'updated', tonumber(added.updated), 'dropped', tonumber(added.dropped), 'diverted', tonumber(added.diverted))
end

-- Return the first changed frames whose generations are due at an observed time ('+inf': all), without those whose results are
-- not written, and the observed time at which the first frame is due. is_first: stop at this frame.
local function due_at(observed, is_first)
  local found, first_due, waiting, most = {}, nil, nil, constants.FINISHED_AT_ONCE
  local changed = redis.call('ZCARD', key.frame_changes)
  for place = 0, changed - 1, most do
    local due = redis.call('ZRANGE', key.frame_changes, '-inf', observed, 'BYSCORE', 'LIMIT', place, most)
    if #due == 0 then break end
    waiting = waiting or unwritten()
    for _, start in ipairs(due) do
      if not waiting[number(start)] and #found < most then
        first_due = first_due or number(redis.call('ZSCORE', key.frame_changes, start))
        found[#found + 1] = number(start)
      end
    end
    if #found == most or is_first and first_due then break end
  end
  return found, first_due
end

-- Make the new generations that are due.
local function correct()
  local due = due_at(job.is_complete and '+inf' or job.observed_now)
  for _, start in ipairs(due) do make_generation(start) end
  if #due == constants.FINISHED_AT_ONCE then job.frames.has_more = true end
end

-- Make the generations of all changes, if a new configuration (a text) changes the declaration.
function frames.flush(compiled)
  if not config.frames or not job.frames or declared_in(state.decoded(compiled)) == config.frames.declared then return end
  for _, start in ipairs(redis.call('ZRANGE', key.frame_changes, 0, -1)) do make_generation(number(start)) end
end

-- Make the records of the frames that W has passed, and complete the records and generations that are due.
function frames.advance()
  if not config.frames then return end
  local log = log_of()
  log.has_more = nil
  if state.changes.was_restored then  -- the store may have lost rows, and generations
    frames.miss_rows(job.watermark)
    log.base = math.max(log.base, log.latest_generation) + constants.RESTORED
    log.latest_generation, log.reason = log.base, 'watermark_restored'
  end
  if job.watermark then read() end
  if job.written_watermark and log.unfinished then finish() end
  prove()
  correct()
end

-- Return the observed time at which the next step is due; nil if none is due by time.
function frames.next_change()
  if not config.frames or not job.frames then return nil end
  if job.frames.has_more then return job.observed_now end
  return (select(2, due_at('+inf', true)))
end

-- Reads

-- Frames: read frames, latest first.
-- args   first, last (event times; absent: any), most (number of frames), is_any (whether to read frames that have not
--        begun)
-- reply  declared (false: the job has no frames), frames (start, end, state, number of its record, rows, generations),
--        records (of these frames, with the fields of tidegate.domain.job.FrameRecord), next (end of the frames before
--        those; absent: no more frames), totals, unfinished (start of the first frame that is not finished; absent: the
--        job has no frames yet), uncounted_up_to

local function in_reply(one)
  if not one then return nil end
  local named = {}
  for i, substream in ipairs(one.substreams) do named[i] = {map = substream} end
  return {map = {reason = one.reason, count = one.count, watermark = one.watermark, substreams = named, query = one.query,
    batch_id = one.batch_id, partitions = one.partitions or {}, up_to = one.up_to}}
end

-- outputs: nil in a record of a previous version.
local function outputs_in_reply(outputs)
  local found = {}
  for i, one in ipairs(outputs or {}) do found[i] = {map = one} end
  return found
end

local function record_in_reply(record)
  local found, batches = {}, {}
  for i, one in ipairs(record.exclusions) do found[i] = in_reply(one) end
  for i, one in ipairs(record.queries) do batches[i] = {map = one} end
  return {map = {start = record.start, ['end'] = record.finish, watermark = record.watermark, read_ms = record.read_ms,
    generation = record.generation, reason = record.reason, exclusions = found, silent = in_reply(record.silent),
    queries = batches, uncounted_up_to = record.uncounted_up_to, finished_ms = record.finished_ms,
    proven_ms = record.proven_ms, outputs = outputs_in_reply(record.outputs), record = record.record}}
end

-- Return the bounds of the frames that a job shows: the number of the first frame, and that of the frame after the last.
local function bounds()
  local log = job.frames
  local first = number(redis.call('ZRANGE', key.frame_starts, 0, 0)[1])
  local last = number(redis.call('ZRANGE', key.frames_counted, 0, 0, 'REV')[1])
  local open = first_number()
  if not open then return nil end
  local finish_ = math.max(job.is_complete and open or open + 1, last and calendar.number_of(last) + 1 or open)
  if job.max_event_time then finish_ = math.max(finish_, calendar.number_of(job.max_event_time) + 1) end
  return first and calendar.number_of(first) or open, finish_
end

-- Return the start of the first frame that is not finished; nil if the job has no frame yet.
function frames.unfinished()
  local log = config.frames and job.frames
  if not log then return nil end
  local first = log.has_begun and log.unfinished or first_number()
  return first and calendar.start_of(first)
end

-- Return the bounds of the first frame that is not finished; nil if the job has no frames.
function frames.first_unfinished()
  if not config.frames or not job.frames or not job.frames.unfinished then return nil end
  local first = job.frames.has_begun and job.frames.unfinished or first_number()
  return {map = {start = calendar.start_of(first), ['end'] = calendar.start_of(first + 1)}}
end

-- Return tidegate.domain.frames.FrameCounts; nil if the job declares no frames.
function frames.counts()
  if not config.frames then return nil end
  local log = job.frames or {totals = {}}
  local last = number(redis.call('ZRANGE', key.frames_counted, 0, 0, 'REV')[1])
  local first, latest = log.has_begun and log.unfinished or job.frames and first_number(), highest(job.max_event_time, last)
  local delays = {}
  for at = 1, #constants.DELAYS_MS + 1 do delays[at] = log.delays and log.delays[at] or 0 end
  return {map = {finished = {map = log.totals}, delays = delays, delay_sum_ms = log.delay_sum_ms or 0,
    open = first and latest and math.max(calendar.number_of(latest) + 1 - first, 0) or 0}}
end

-- Return the data of predictions.
-- reply  every, offset_ms, time_zone (of the declaration; absent: no frames, or UTC), unfinished (end of the first frame that is not
--        finished), completions (texts "<end> <processing time>", in the order in which the frames were finished)
function frames.learned()
  if not config.frames or not job.frames then return {completions = {}} end
  local first = frames.first_unfinished()
  return {every = config.frames.unit or config.frames.every, offset_ms = config.frames.offset_ms,
    time_zone = config.frames.time_zone,
    unfinished = first and first.map['end'], completions = redis.call('LRANGE', key.completions, 0, -1)}
end

function frames.read(first, last, most, is_any)
  local log, answer = job.frames, {declared = config.frames and true or false, frames = {}, records = {}, totals = {map = {}}}
  if not config.frames or not log then return answer end
  answer.totals = {map = log.totals}
  local found, records, places = {}, {}, {}
  local low, high = bounds()
  if not low and is_any then low = calendar.number_of(first) end  -- before the first row, any frame may be one of the job
  if not low then return answer end
  answer.unfinished = frames.unfinished()
  answer.uncounted_up_to = log.uncounted_up_to
  if is_any then
    high = calendar.number_of(last) + 1
  elseif last then
    high = math.min(high, calendar.number_of(last) + 1)
  end
  if first then low = math.max(low, calendar.number_of(first)) end
  local record
  for number_ = high - 1, low, -1 do
    local start, finish_ = calendar.start_of(number_), calendar.start_of(number_ + 1)
    if #found == most then
      answer.next = finish_
      break
    end
    local is_read = not log.unread or number_ < log.unread
    if not is_read then
      record = nil
    elseif not record or start < record.start or start >= record.finish then
      record = record_of(start)
    end
    local place = record and places[record.start]
    if record and not place then
      place = #records + 1
      records[place], places[record.start] = record_in_reply(record), place
    end
    local generations, packed = {}, redis.call('HGET', key.frame_generations, text(start))
    for i, one in ipairs(packed and cmsgpack.unpack(packed) or {}) do
      one.outputs = outputs_in_reply(one.outputs)
      generations[i] = {map = one}
    end
    local due = number(redis.call('ZSCORE', key.frame_changes, text(start)))
    found[#found + 1] = {map = {start = start, ['end'] = finish_, state = record and state_of(record, start, finish_) or 'open',
      record = place, rows = {map = rows_in(key.frame_rows, start)}, generations = generations,
      changes_due_ms = due, added = due and {map = rows_in(key.frame_added, start)}}}
  end
  answer.frames, answer.records = found, records
  return answer
end

return frames
