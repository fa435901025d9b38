-- @include observe
-- Batches of a query: begin, stage, commit and heartbeat, as in tidegate.domain.batches. A batch begins with a pinned
-- watermark, its partitions stage their reports, and its commit applies these. A run is a record of query, query_id and
-- run_id.
local refuse, number, highest, above = values.refuse, values.number, values.highest, values.above
local job = state.job
local batches = {}

-- Callers: runs of a query on its checkpoint

-- Refuse a run that a newer run has replaced, or whose query was retired.
local function check_run(query, run)
  if not query.run_id then return end
  local is_fenced = redis.call('ZSCORE', key.fenced_runs(query.name), run.run_id)
  if query.retired and (is_fenced or run.run_id == query.run_id) then refuse('query_retired', {query = query.name}) end
  if is_fenced then refuse('query_fenced', {current_run_id = query.run_id}) end
end

-- Return the query that a run may continue. Refuse the run while a batch of another checkpoint is open.
local function query_of_caller(run)
  local query = queries.get(run.query)
  check_run(query, run)
  if query.run_id and run.query_id ~= query.query_id and query.open then
    refuse('checkpoint_conflict', {open_batch_id = query.latest, open_query_id = query.query_id})
  end
  return query
end

-- Return the query of a batch that this run has begun.
local function query_of_batch(run, batch_id)
  local query = queries.get(run.query)
  check_run(query, run)
  local is_begun = query.latest and batch_id <= query.latest
  if not is_begun or run.query_id ~= query.query_id or run.run_id ~= query.begun_by then
    refuse('batch_not_begun', {query = run.query, batch_id = batch_id})
  end
  return query
end

-- Record a call of a query.
local function contact(query)
  query.last_contact = job.now
  redis.call('ZADD', key.last_seen, job.observed_now, query.name)
  job.last_contact = job.now
end

-- Make a run the current run of its query, and fence the previous run.
local function enter(query, run, waited_ms)
  redis.call('ZADD', key.queries, 'NX', job.now, query.name)
  redis.call('SADD', key.query_names, query.name)
  if not query.run_id then
    query.query_id, query.run_id = run.query_id, run.run_id
  elseif run.run_id ~= query.run_id then
    if query.run_id ~= '' then  -- '' if the query was retired before its first call
      local fenced = key.fenced_runs(query.name)
      local _, newest = values.highest_of(fenced)
      redis.call('ZADD', fenced, (newest or 0) + 1, query.run_id)
      redis.call('ZREMRANGEBYRANK', fenced, 0, -constants.PINNED_WATERMARKS_KEPT - 1)
      history.write('fenced', 'query', query.name, 'run_id', query.run_id)
    end
    -- The previous run may have written a version of a table that it has not told.
    query.run_id, query.waited, query.outputs = run.run_id, 0, nil
  end
  query.retired = false
  contact(query)
  queries.add_outage(query, waited_ms)
end

-- The staged reports of the open batch
--
-- The hash of a query contains a value for each report: its order and the packed report. The field is the digest of the
-- report, so that a repeated report replaces itself. A commit combines the reports. If they are large, the coordinator combines
-- them instead (combine_reports in tidegate.store.pieces) and stores the result in pieces, because Redis would be blocked for
-- too long.

-- Store a report: partition; members, event_times, watermarks; counted, rows, future_rows; delayed, delays (columns).
local function stage(query, report)
  query.staged = query.staged + #report.counted + #report.delayed + 1
  local packed = cmsgpack.pack(report)
  redis.call('HSET', key.staged(query.name), redis.sha1hex(packed), cmsgpack.pack(query.staged) .. packed)
  local _, new = membership.split(report.members)
  bulk.sadd(key.coming(query.name), new)
end

-- Return the report in a stored value, with its order.
local function staged_report(packed)
  local order, report = cmsgpack.unpack(packed)
  report.order = order
  return report
end

local function discard_staged(query)
  query.staged = 0
  redis.call('UNLINK', key.staged(query.name), key.coming(query.name))
end

-- Return the reports that the coordinator has combined (see commands.commit); nil if it has not.
local function combined_before() return args.joined end

-- Return the version of the reports of a query, which the coordinator must combine before the batch commits; nil if they
-- are small, or if the coordinator has combined them. If it has combined other reports, it must do so again, even if these
-- are small.
local function to_combine(query)
  local version = query.begun_by .. ' ' .. query.latest .. ' ' .. query.staged
  local combined = combined_before()
  if combined then return combined.version ~= version and version or nil end
  -- A member can have an entry in counted and in delayed.
  return query.staged > 2 * constants.ENTRIES and version or nil
end

-- Set values by partition and member; a later report of a partition replaces its values. Return the number of new values.
local function set_each(by_partition, partition, members, column)
  local of_partition, new = by_partition[partition] or {}, 0
  by_partition[partition] = of_partition
  for i, member in ipairs(members) do
    local value = column[i]
    if value then
      if not of_partition[member] then new = new + 1 end
      of_partition[member] = value
    end
  end
  return new
end

local function raise_each(highest, members, column)
  for i, member in ipairs(members) do
    local value = number(column[i])
    if value and not (highest[member] and highest[member] >= value) then highest[member] = value end
  end
end

-- Return the values of a table by partition and member as lists of members and values, for each partition.
local function columns_of(by_partition)
  local columns = {}
  for _, of_partition in pairs(by_partition) do
    local members, column = {}, {}
    for member, value in pairs(of_partition) do members[#members + 1], column[#column + 1] = member, value end
    columns[#columns + 1] = {members, column}
  end
  return columns
end

-- Combine the reports of a query: members with their highest max_event_times and watermarks (columns, false: none); rows and
-- future_rows (for each partition, a list of members and a list of values), delayed and delays (columns, with a member for
-- each partition), and count (the number of values in rows).
local function combine(query)
  local reports = redis.call('HVALS', key.staged(query))
  for i, packed in ipairs(reports) do reports[i] = staged_report(packed) end
  table.sort(reports, function(a, b) return a.order < b.order end)
  local combined = {members = {}, max_event_times = {}, watermarks = {}, delayed = {}, delays = {}, count = 0}
  local event_times, watermarks, is_listed, rows, future_rows, delays = {}, {}, {}, {}, {}, {}
  for _, report in ipairs(reports) do
    raise_each(event_times, report.members, report.event_times)
    raise_each(watermarks, report.members, report.watermarks)
    combined.count = combined.count + set_each(rows, report.partition, report.counted, report.rows)
    set_each(future_rows, report.partition, report.counted, report.future_rows)
    set_each(delays, report.partition, report.delayed, report.delays)
    for _, member in ipairs(report.counted) do
      if not is_listed[member] then
        is_listed[member], combined.members[#combined.members + 1] = true, member
      end
    end
  end
  for i, member in ipairs(combined.members) do
    combined.max_event_times[i], combined.watermarks[i] = event_times[member] or false, watermarks[member]
  end
  combined.rows, combined.future_rows = columns_of(rows), columns_of(future_rows)
  for _, of_partition in ipairs(columns_of(delays)) do
    for i, member in ipairs(of_partition[1]) do
      combined.delayed[#combined.delayed + 1], combined.delays[#combined.delays + 1] = member, of_partition[2][i]
    end
  end
  return combined
end

-- Return the combined reports of a query, if the coordinator has not combined them.
local function combined_here(query)
  local changes = state.changes
  if changes.combined_query ~= query.name then changes.combined_query, changes.combined = query.name, combine(query.name) end
  return changes.combined
end

-- Return the number of row counts that are staged, one per partition and member.
local function count_staged(query) return (combined_before() or combined_here(query)).count end

-- Record that no batch of a query is open, and discard the staged reports.
local function close(query)
  redis.call('ZREM', key.open_pins, query.name)
  redis.call('ZREM', key.open_batches, query.name)
  query.open = false
  emission.place_unwritten(query)
  discard_staged(query)
end

-- Return phases (see steps.lua) that apply the staged reports of the open batch of a query and close it, if the
-- progress has commits. progress.has_left: whether a substream that follows the clock has become idle. The last phase is followed
-- by an evaluation.
local function commit_staged(name)
  -- Return a function that calls visit(piece) for the pieces of the combined reports that have a column. It returns
  -- whether pieces remain.
  local function each(column)
    return function(progress, visit)
      if not progress.commits then return false end
      local combined = combined_before()
      if combined then return steps.pieces(progress, combined[column], visit) end
      visit(combined_here(queries.get(name)))
      return false
    end
  end
  local measure, learn = delays.phases(name, each('delayed'), function() return queries.get(name).begun_merged end)
  local function observe(progress)
    progress.active = progress.active or history.summary()
    return each('members')(progress, function(piece)
      local _, active = observation.observe(name, piece, (queries.observed_time(name)))
      history.add(progress.active, active)
    end)
  end
  local function count(progress)
    return each('rows')(progress, function(piece)
      for _, columns in ipairs(piece.rows) do observation.count_rows('reported_rows', unpack(columns)) end
      for _, columns in ipairs(piece.future_rows) do observation.count_future(unpack(columns)) end
    end)
  end
  local function end_batch(progress)
    if not progress.commits then return end
    history.write_substreams('active', name, progress.active)
    local query = queries.get(name)
    if args.caught_up then
      local time = job.now - args.caught_up_age_ms
      progress.has_left = idleness.time_out_caught_up(name, args.caught_up, time - query.outage)
      frames.confirm_silence(query, time, args.caught_up)
    elseif query.input_known_until then
      queries.advance_idle_clock(query, query.input_known_until)
    end
    close(query)
    progress.has_left = idleness.time_out_substreams(name, query.idle_clock) or progress.has_left
    if not args.caught_up and query.input_known_until then frames.confirm_silence(query, query.input_known_until) end
  end
  return measure, learn, observe, count, end_batch
end

-- Retire a query and undo the begin of its open batch. Another begin of the batch returns its pinned watermark.
function batches.give_up(query, action)
  if query.open then
    local pinned = number(redis.call('HGET', key.pinned_watermarks(query.name), query.latest))
    frames.lose({reason = action, count = 1, watermark = pinned, substreams = {}, query = query.name,
      batch_id = query.latest})
  end
  frames.wrote_results(query)
  if query.open then query.latest = query.latest > 0 and query.latest - 1 or nil end
  query.released, query.retired, query.begun, query.outputs = false, true, nil, nil
  close(query)
end

-- Staged: return some of the staged reports of a query, which the coordinator combines before the batch commits.
-- args   query, cursor (0: the first reports)
-- reply  cursor (0: no more reports), reports: each with its order, and members, event_times, watermarks, counted, rows,
--        future_rows, delayed and delays (columns)
function commands.staged()
  clock.read()
  local cursor, found = unpack(redis.call('HSCAN', key.staged(args.query), args.cursor, 'COUNT', 1))
  local reports = {}
  for i = 2, #found, 2 do reports[#reports + 1] = {map = staged_report(found[i])} end
  return {map = {cursor = cursor, reports = reports}}
end

-- Begin: open a batch and pin its watermark, or return the pinned watermark of a batch that has already begun. The begin
-- of a later batch commits the open batch, because Spark begins batch N only after batch N - 1 has returned. If the open
-- batch is large, this runs in steps.
-- args   token, run, batch_id, known (whether the client has a pinned watermark), pinned_watermark, keep, waited_ms,
--        input_age_ms (absent: unknown), tells_output (whether the client tells the output watermark of the query),
--        output_watermark (absent: none), outputs (tables that the query writes: table, version; absent: none), joined
--        (combined reports; absent: see to_combine): version, and ranges of pieces
-- reply  pinned_watermark, replayed, joined, latest_event_time, previous_batch_id, previous_open, revision,
--        unfinished_frame (absent: the job has no frame yet); or join: the version of the reports of the open batch, which
--        the coordinator must combine
-- errors query_fenced, query_retired, checkpoint_conflict, batch_forgotten, pinned_watermark_conflict, job_complete

-- Reply to a call about a batch, with the first frame that is not finished after it.
local function finish_batch(members)
  local found = reply.finish(members)
  found.map.unfinished_frame = frames.unfinished()
  return found
end

local function begun(pinned, replayed, joined, previous, was_open)
  return finish_batch({pinned_watermark = pinned, replayed = replayed, joined = joined,
    latest_event_time = observation.latest_event_time(), previous_batch_id = previous, previous_open = was_open,
    revision = job.revision})
end

-- Return whether an unexpected query joins a job that has a watermark.
local function joins(query)
  local is_new = not query.run_id
    or (query.retired and redis.call('EXISTS', key.last_events(query.name), key.idle(query.name)) == 0)
  if not is_new or job.coalesced_watermark == nil then return false end
  for _, expected in ipairs(state.config.expected_queries) do
    if expected == query.name then return false end
  end
  history.write('joined', 'query', query.name)
  return true
end

-- Record the output watermark of the query that begins a batch. Rows of the batch at its pinned watermark or above are on
-- time, and their results are not yet written.
local function tell_output(query, pinned)
  local told = highest(number(args.output_watermark), query.output)
  if above(told, pinned) then told = pinned end
  query.tells_output, query.output = args.tells_output or nil, told
  emission.place_unwritten(query)
end

-- Replace the versions of tables that a query writes. Keep the tables told last. Versions are texts, because a double
-- cannot hold all of them. outputs: nil if the client does not tell them.
local function tell_outputs(query, outputs)
  if not outputs then return end
  local is_told, kept = {}, {}
  for _, one in ipairs(outputs) do is_told[one.table] = true end
  for _, one in ipairs(query.outputs or {}) do
    if not is_told[one.table] then kept[#kept + 1] = one end
  end
  for _, one in ipairs(outputs) do kept[#kept + 1] = one end
  while #kept > constants.OUTPUTS_KEPT do table.remove(kept, 1) end
  query.outputs = kept
end

-- Begin again a batch that the query has begun before.
local function replay(query, pinned, previous, was_open)
  if args.batch_id == query.latest then
    if query.begun_by ~= args.run.run_id then  -- a new run takes the batch over, and sends all reports again
      discard_staged(query)
      query.begun_by = args.run.run_id
      -- A delayed begin must not replace the versions that the commit of the batch, or a heartbeat, has told since.
      if query.open then tell_outputs(query, args.outputs) end
    end
    query.begun_revision = job.revision  -- the client reads this configuration before it counts rows
    -- The answer to the first begin may have been lost, and with it the evidence of a lost commit.
    if query.open then previous, was_open = query.previous, query.previous_open or false end
  end
  tell_output(query, pinned)
  return begun(pinned, true, false, previous, was_open)
end

local function start(progress)
  reply.load()
  local run, batch_id = args.run, args.batch_id
  local query = query_of_caller(run)
  -- An abandoned batch begins again with its pinned watermark.
  local is_same = query.run_id and run.query_id == query.query_id or false
  local previous, was_open = is_same and query.latest or nil, is_same and query.open or false
  local is_replay = previous ~= nil and batch_id <= previous
  local stored = is_same and redis.call('HGET', key.pinned_watermarks(query.name), batch_id)
  if is_replay and not stored then refuse('batch_forgotten', {latest_batch_id = query.latest}) end
  local known, pinned = args.known, args.pinned_watermark
  if stored then
    if known and pinned ~= number(stored) then
      refuse('pinned_watermark_conflict', {pinned_watermark = number(stored)})
    end
    known, pinned = true, number(stored)
  end
  if job.is_complete and not is_replay then refuse('job_complete') end
  local version = not is_replay and query.open and to_combine(query)
  if version then return {map = {join = version}} end

  emission.accept_token(args.token)
  local joined = not is_replay and joins(query)
  enter(query, run, args.waited_ms)
  if is_replay then return replay(query, pinned, previous, was_open) end
  tell_outputs(query, args.outputs)  -- before a lost commit is made up for, which may finish frames
  if run.query_id ~= query.query_id then  -- the batches of the previous checkpoint have other numbers
    redis.call('UNLINK', key.pinned_watermarks(query.name), key.pinned_batches(query.name))
    discard_staged(query)
    query.query_id, query.latest, query.open, query.begun, query.output, query.proven = run.query_id, nil, false, nil, nil, nil
  end
  query.previous, query.previous_open = previous, was_open
  progress.known, progress.pinned, progress.joined, progress.previous, progress.was_open = known, pinned, joined, previous, was_open
  progress.commits = query.open
  -- The store has lost the commit, and perhaps also reports of this batch. The batch is therefore no evidence that
  -- substreams are silent.
  if query.open then query.input_known_until = nil end
end

-- Open a batch and pin its watermark; delete all but the last args.keep pinned watermarks.
local function open_batch(query, pinned)
  assert(not state.changes.is_plain)
  local name, batch_id = query.name, args.batch_id
  query.latest, query.open, query.released = batch_id, true, false
  query.begun, query.begun_by, query.begun_merged = job.now, query.run_id, emission.merged_watermark()
  query.begun_proven = query.proven
  if state.config.arrival_target then
    -- A job without a target does not read what its other queries have proven, which costs a read of each.
    query.begun_proven = job.proven and query.proven and math.min(job.proven, query.proven) or nil
  end
  query.begun_revision = job.revision
  query.input_known_until = args.input_age_ms and job.now - args.input_age_ms
  redis.call('HSET', key.pinned_watermarks(name), batch_id, pinned or '')
  redis.call('ZADD', key.pinned_batches(name), batch_id, batch_id)
  redis.call('ZADD', key.open_pins, values.score(pinned), name)
  redis.call('ZADD', key.open_batches, job.observed_now, name)
  discard_staged(query)
  frames.wrote_results(query)
  local old = redis.call('ZRANGE', key.pinned_batches(name), '-inf', batch_id - args.keep, 'BYSCORE')
  bulk.zrem(key.pinned_batches(name), old)
  bulk.hdel(key.pinned_watermarks(name), old)
end

local function open(progress)
  local query, pinned = queries.get(args.run.query), progress.pinned
  -- The known pinned watermark must hold W while the previous batch is committed.
  if progress.known then open_batch(query, pinned) end
  if progress.commits then frames.miss_rows() end
  if progress.commits then evaluate.evaluate(progress.has_left) end
  if not progress.known then
    pinned = job.coalesced_watermark
    open_batch(query, pinned)
  end
  tell_output(query, pinned)
  return begun(pinned, false, progress.joined, progress.previous, progress.was_open)
end

function commands.begin()
  local measure, learn, observe, count, end_batch = commit_staged(args.run.query)
  return steps.run({start, measure, learn, observe, count, end_batch, open})
end

-- Stage: store the report of one partition until its batch commits.
-- args   max_substreams, token, run, batch_id, partition; members, max_event_times, watermarks, rows, future_rows (columns;
--        rows and future_rows may be empty); delayed, delays (columns: members, lists of alternating buckets and rows)
-- reply  applied: false if the batch is already committed
-- errors query_fenced, query_retired, batch_not_begun, event_time_missing, too_many_substreams
function commands.stage()
  local name = args.run.query
  return steps.run({
    function(progress)
      reply.load()
      local query = query_of_batch(args.run, args.batch_id)
      progress.is_open = query.open and args.batch_id == query.latest or false
      if progress.is_open then observation.look_for_room(progress, args.size or #args.members) end
    end,
    function(progress) return observation.check_members(progress, name) end,
    function(progress)
      observation.refuse_if_full(progress)
      emission.accept_token(args.token)
      contact(queries.get(name))
      if progress.is_open and progress.future then history.write_substreams('future', name, progress.future) end
    end,
    function(progress)
      if not progress.is_open then return end
      return steps.members(progress, function(piece)
        local kept = observation.set_aside_future(piece)
        stage(queries.get(name), {partition = args.partition, members = kept.members, event_times = kept.max_event_times,
          watermarks = kept.watermarks, counted = piece.members, rows = piece.rows, future_rows = piece.future_rows,
          delayed = piece.delayed, delays = piece.delays})
      end)
    end,
    function(progress) return reply.finish({applied = progress.is_open}) end,
  })
end

-- The offsets of a query in the partitions of its source (tidegate.domain.offsets). Its hash has two packed fields:
-- batch (incarnation, at_ms, query_id, batch_id; unread, nil if unknown, and skipped: numbers of offsets) and columns
-- (see commit). A coordinator without offsets does not remove them, so those of an earlier incarnation may be left.

-- Return the latest committed batch of the checkpoint that told its offsets; nil if no batch told them.
function batches.offsets(query)
  local packed = redis.call('HGET', key.offsets(query), 'batch')
  local found = packed and cmsgpack.unpack(packed)
  local is_current = found and found.incarnation == job.incarnation and found.query_id == queries.get(query).query_id
  return is_current and found or nil
end

-- Return the columns of that batch.
function batches.offset_columns(query) return cmsgpack.unpack(redis.call('HGET', key.offsets(query), 'columns')) end

-- Record offsets that a batch has skipped, and add them to a list. by_partition: a list of partitions and their numbers of
-- offsets.
local function record_skipped(kind, query, batch_id, by_partition, lost)
  if #by_partition == 0 then return 0 end
  local count, first = 0, {}
  for i, one in ipairs(by_partition) do
    count = count + one[2]
    if i <= constants.NAMES_KEPT then first[i] = one[1] end
  end
  history.write(kind, 'query', query, 'batch_id', batch_id, 'count', count, 'partitions', cjson.encode(first))
  lost[#lost + 1] = {reason = kind, count = count, substreams = {}, query = query, batch_id = batch_id, partitions = first}
  return count
end

-- Return lists of members whose topic was created again, whose partitions are new, whose partitions are gone, and of those
-- with partitions.
-- known: the columns of the latest batch that told its offsets; nil if no batch told them.
local function substream_changes(query, columns, known)
  local ends, topics, recreated, selected = {}, {}, {}, columns.substream_columns
  for i, partition in ipairs(known and known.partitions or {}) do ends[partition] = known.ends[i] end
  local function topic_of(partition) return string.match(partition, '^(.*)/[^/]*$') or '' end
  local function member_of(partition)
    local of = {topic = topic_of(partition), partition = string.match(partition, '[^/]*$')}
    local name = of[selected[1]]
    if selected[2] then name = name .. '/' .. of[selected[2]] end
    return query .. '/' .. name
  end
  local is_same, before = true, known and #known.partitions or 0
  for i, partition in ipairs(columns.partitions) do
    local start = columns.starts[i]
    if start and (columns.ends[i] < start or start < (ends[partition] or start)) then
      recreated[topic_of(partition)], is_same = true, false
    end
    is_same = is_same and (before == 0 or ends[partition] ~= nil)
  end
  if is_same and (before == 0 or before == #columns.partitions) then return {}, {}, {}, {} end  -- as in most batches
  for _, partition in ipairs(columns.partitions) do topics[partition] = topic_of(partition) end
  local kept, present, again, new, gone, all = {}, {}, {}, {}, {}, {}
  for _, partition in ipairs(columns.partitions) do
    local member = member_of(partition)
    present[member], all[#all + 1] = true, member
    if recreated[topics[partition]] then
      again[#again + 1] = member
    elseif ends[partition] then
      kept[member] = true
    elseif before > 0 then
      new[#new + 1] = member
    end
  end
  for _, partition in ipairs(known and known.partitions or {}) do
    if not topics[partition] then gone[#gone + 1] = member_of(partition) end
  end
  local function without(members, ...)
    local found, seen = {}, {}
    for _, member in ipairs(members) do
      local is_left_out = seen[member]
      for _, others in ipairs({...}) do is_left_out = is_left_out or others[member] end
      if not is_left_out then found[#found + 1], seen[member] = member, true end
    end
    return found, seen
  end
  local restarted, is_restarted = without(again)
  return restarted, (without(new, kept, is_restarted)), (without(gone, present)), all
end

-- Replace the offsets of a query by those of a later batch, and record the offsets that the batch has skipped. Return
-- whether the batch is a later one, and the columns of the batch before that told its offsets.
local function advance_offsets(query, batch_id, columns, lost)
  local before, ends = batches.offsets(query.name), {}
  if before and batch_id <= before.batch_id then return false end
  local known = before and batches.offset_columns(query.name)
  if before and batch_id == before.batch_id + 1 then
    for i, partition in ipairs(known.partitions) do ends[partition] = known.ends[i] end
  end
  local skipped, restarted, unread = {}, {}, nil
  for i, partition in ipairs(columns.partitions) do
    local start, last, latest = columns.starts[i], columns.ends[i], columns.latest[i]
    if start and last < start then
      restarted[#restarted + 1] = {partition, last}
    elseif start and start > (ends[partition] or start) then
      skipped[#skipped + 1] = {partition, start - ends[partition]}
    end
    if latest then unread = (unread or 0) + math.max(0, latest - last) end
  end
  local count = record_skipped('offsets_skipped', query.name, batch_id, skipped, lost)
    + record_skipped('offsets_restarted', query.name, batch_id, restarted, lost)
  local stored = {}
  for name, column in pairs(columns) do
    if name ~= 'starts' and name ~= 'substream_columns' then stored[name] = column end
  end
  redis.call('HSET', key.offsets(query.name), 'columns', cmsgpack.pack(stored), 'batch', cmsgpack.pack({
    incarnation = job.incarnation, at_ms = job.now, query_id = query.query_id, batch_id = batch_id, unread = unread,
    skipped = (before and before.skipped or 0) + count}))
  return true, known
end

-- Apply the offsets of a batch, unless those of a later batch were applied. Substreams end only if another one of the
-- source counts. Return whether a substream has changed; the evaluation that follows then counts it as one that has left.
local function apply_offsets(query, batch_id, columns, lost)
  local is_later, known = advance_offsets(query, batch_id, columns, lost)
  if not is_later or job.is_complete or #columns.substream_columns == 0 then return false end
  local again, new, gone, present = substream_changes(query.name, columns, known)
  for _, member in ipairs((bulk.split_by_set(key.done, new))) do again[#again + 1] = member end
  local restarted = observation.restart_substreams(query.name, again)
  local counting = bulk.split_by_set(key.last_events(query.name), present)
  local ended = #counting > 0 and observation.end_substreams(query.name, gone) or {}
  history.write_substreams('restarted', query.name, history.summary(restarted))
  history.write_substreams('ended', query.name, history.summary(ended))
  return #restarted + #ended > 0
end

-- Commit: apply the staged reports of a batch and account for its rows, exactly once. A large batch commits in steps.
-- args   token, run, batch_id, waited_ms, reported (absent: unknown), caught_up and caught_up_age_ms (members whose
--        input was read up to this time; absent: the time of the begin counts for all members); members, counts (a
--        column for each row class),
--        disposition (dropped or diverted), hours_of_job and hours (see ledger.add), frames (see frames.count_rows),
--        uncounted (whether the batch has rows without frames), or stored pieces of these columns:
--        stored, members (range); joined (combined reports; absent: see to_combine): version, count, and ranges of pieces;
--        offsets (absent: unknown; of the batch offset_batch_id): columns partitions, starts, ends, latest, behind_ms;
--        open_transactions, substream_columns; outputs (as of a begin)
-- reply  applied: false if the batch was already committed; unfinished_frame (as of a begin); or join: the version of the
--        reports, which the coordinator must combine
-- errors query_fenced, query_retired, batch_not_begun, reports_missing

-- Add a column of counts to the totals of the job and of its substreams.
local function account(class, all, column)
  local total, members, counts = 0, {}, {}
  for i, count in ipairs(column) do
    if count ~= 0 then
      members[#members + 1], counts[#counts + 1] = all[i], count
      total = total + count
      if total > values.HIGHEST / 2 then  -- a larger sum of doubles may be inexact
        bulk.add(key.job, class, total)
        total = 0
      end
    end
  end
  observation.count_rows(class, members, counts)
  if total > 0 then bulk.add(key.job, class, total) end
end

-- Return whether the rows of a batch are counted by frame. A batch of a previous version has no such counts, and the client
-- may not know the frames that were declared while the batch was open.
local function is_counted(query)
  return args.uncounted ~= nil and (query.begun_revision or 1) >= (job.frames and job.frames.revision or 1)
end

function commands.commit()
  local name = args.run.query
  local measure, learn, observe, count, end_batch = commit_staged(name)
  return steps.run({
    function(progress)
      reply.load()
      local query = query_of_batch(args.run, args.batch_id)
      progress.commits = query.open and args.batch_id == query.latest or false
      local version = progress.commits and to_combine(query)
      if version then return {map = {join = version}} end
      if progress.commits and args.reported then
        local missing = args.reported - count_staged(query)
        if missing > 0 then refuse('reports_missing', {query = name, batch_id = args.batch_id, missing = missing}) end
      end
      emission.accept_token(args.token)
      contact(query)
      queries.add_outage(query, args.waited_ms)
      if progress.commits then tell_outputs(query, args.outputs) end
      if progress.commits and args.offsets then
        progress.lost_offsets = {}
        progress.has_changed = apply_offsets(query, args.offset_batch_id, args.offsets, progress.lost_offsets)
      end
    end,
    measure, learn, observe, count, end_batch,
    function(progress)
      local query = queries.get(name)
      if not progress.commits or not state.config.arrivals or not query.begun_proven or not is_counted(query) then return end
      return steps.members(progress, function(piece)
        limits.measure_arrivals(progress, query.begun_proven, piece.frames)
      end)
    end,
    function(progress)
      limits.learn_arrivals(progress)
      for _, lost in ipairs(progress.lost_offsets or {}) do frames.lose(lost) end  -- after the rows of the batch
      if progress.commits then evaluate.evaluate(progress.has_left or progress.has_changed) end
    end,
    function(progress)
      if not progress.commits then return end
      return steps.members(progress, function(piece)
        local members, late = piece.members, piece.counts.late
        for class, column in pairs(piece.counts) do account(class, members, column) end
        if args.disposition == 'diverted' and late then account('diverted', members, late) end
        if is_counted(queries.get(name)) then
          frames.count_rows(queries.get(name), piece.frames, args.disposition, observation.latest_event_time())
        end
        if #piece.hours_of_job == 0 and #piece.hours.places == 0 then return end
        local known, latest = observation.known(members), observation.latest_event_time()
        if ledger.add(piece.hours_of_job, piece.hours, members, args.disposition, known, latest) then
          progress.has_new_hours = true
        end
      end)
    end,
    function(progress)
      if progress.has_new_hours then ledger.trim() end
      if progress.commits and (args.uncounted or not is_counted(queries.get(name))) then frames.miss_rows() end
      return finish_batch({applied = progress.commits})
    end,
  })
end

-- Heartbeat: advance the idle clock of a query that was caught up. While a batch is open, the heartbeat must be about
-- the batch before it.
-- args   token, run, observed_ms, waited_ms, after_batch (absent: no check, but no batch may be open), caught_up (members;
--        absent: all); offsets and offset_batch_id (as of a commit); tells_output, output_watermark and outputs (as of a begin)
-- reply  applied: false if the clock did not advance
-- errors query_fenced, query_retired, checkpoint_conflict
function commands.heartbeat()
  reply.load()
  local query = query_of_caller(args.run)
  emission.accept_token(args.token)
  enter(query, args.run, args.waited_ms)
  if args.tells_output and args.run.query_id == query.query_id then
    query.tells_output, query.output = true, highest(number(args.output_watermark), query.output)
  end
  emission.place_unwritten(query)
  local committed, is_current = query.latest, not query.open
  if query.open then committed = query.previous end
  if args.after_batch then is_current = not committed or args.after_batch >= committed end
  if is_current and args.run.query_id == query.query_id then tell_outputs(query, args.outputs) end
  local is_told = args.tells_output and args.after_batch and query.latest and args.after_batch >= query.latest
  if is_told and not query.open and args.run.query_id == query.query_id then frames.wrote_results(query) end
  local applied
  if query.open then
    applied = args.after_batch ~= nil and args.after_batch == query.previous and not query.previous_open
  else
    applied = not args.after_batch or args.after_batch == query.latest
  end
  if applied then
    local time, has_left = math.min(args.observed_ms, job.now), false
    if args.offsets and args.after_batch and args.run.query_id == query.query_id then
      local lost = {}
      has_left = apply_offsets(query, args.offset_batch_id, args.offsets, lost)
      for _, one in ipairs(lost) do frames.lose(one) end
    end
    if args.caught_up then
      has_left = idleness.time_out_caught_up(query.name, args.caught_up, time - query.outage) or has_left
    else
      queries.advance_idle_clock(query, time)
    end
    frames.confirm_silence(query, time, args.caught_up)
    evaluate.evaluate(idleness.time_out_substreams(query.name, query.idle_clock) or has_left)
  end
  return reply.finish({applied = applied})
end

return batches
