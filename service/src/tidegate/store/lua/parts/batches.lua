-- @include parts/observation
-- Batches and runs: begin, pin, stage, commit, and the checks that reject older runs and other checkpoints. A run is a
-- record of query, query_id and run_id. See tidegate.domain.batches.
local refuse = values.refuse
local job = state.job
local batches = {}

-- Refuse a run that a newer run has replaced, or whose query was retired.
function batches.check_run(query, run)
  if not query.run_id then return end
  local is_fenced = redis.call('ZSCORE', key.fenced_runs(query.name), run.run_id)
  if query.retired and (is_fenced or run.run_id == query.run_id) then refuse('query_retired', {query = query.name}) end
  if is_fenced then refuse('query_fenced', {current_run_id = query.run_id}) end
end

-- Refuse a run while a batch of another checkpoint is open.
function batches.check_checkpoint(query, run)
  if query.run_id and run.query_id ~= query.query_id and query.open then
    refuse('checkpoint_conflict', {open_batch_id = query.latest, open_query_id = query.query_id})
  end
end

-- Return the query of a batch that this run has begun.
function batches.begun_query(run, batch_id)
  local query = queries.get(run.query)
  batches.check_run(query, run)
  local is_begun = query.latest and batch_id <= query.latest
  if not is_begun or run.query_id ~= query.query_id or run.run_id ~= query.begun_by then
    refuse('batch_not_begun', {query = run.query, batch_id = batch_id})
  end
  return query
end

-- Record a call of a query.
function batches.contact(query)
  query.last_contact = job.now
  redis.call('ZADD', key.last_seen, job.observed_now, query.name)
  job.last_contact = job.now
end

local function fence(query)
  local name = key.fenced_runs(query.name)
  local _, newest = values.highest_of(name)
  redis.call('ZADD', name, (newest or 0) + 1, query.run_id)
  redis.call('ZREMRANGEBYRANK', name, 0, -constants.PINNED_WATERMARKS_KEPT - 1)
  journal.write('fenced', 'query', query.name, 'run_id', query.run_id)
end

-- Make a run the current run of its query, and fence the previous run.
function batches.enter(query, run)
  redis.call('ZADD', key.queries, 'NX', job.now, query.name)
  redis.call('SADD', key.query_names, query.name)
  if not query.run_id then
    query.query_id, query.run_id = run.query_id, run.run_id
  elseif run.run_id ~= query.run_id then
    if query.run_id ~= '' then fence(query) end  -- '' if the query was retired before its first call
    query.run_id, query.waited = run.run_id, 0
  end
  query.retired = false
  batches.contact(query)
end

-- Move a query without an open batch to a checkpoint. If this is another checkpoint, delete the previous batches.
function batches.move_to(query, query_id)
  if query_id == query.query_id then return end
  redis.call('UNLINK', key.pinned_watermarks(query.name), key.pinned_batches(query.name))
  redis.call('UNLINK', key.staged(query.name))
  query.query_id, query.latest, query.open, query.begun, query.staged = query_id, nil, false, nil, 0
end

-- Let a run continue the latest batch; discard reports that another run staged.
function batches.take_over(query, run_id)
  if query.begun_by == run_id then return end
  redis.call('UNLINK', key.staged(query.name))
  query.begun_by, query.staged = run_id, 0
end

-- Open a batch and pin its watermark; delete all but the last `keep` pinned watermarks.
function batches.open_batch(query, batch_id, pinned, input_known_until, keep)
  local name = query.name
  query.latest, query.open, query.released, query.staged = batch_id, true, false, 0
  query.begun, query.begun_by, query.begun_merged = job.now, query.run_id, merge.merged_watermark()
  query.input_known_until = input_known_until
  redis.call('HSET', key.pinned_watermarks(name), batch_id, pinned or '')
  redis.call('ZADD', key.pinned_batches(name), batch_id, batch_id)
  redis.call('ZADD', key.open_pins, values.score(pinned), name)
  redis.call('ZADD', key.open_batches, job.observed_now, name)
  redis.call('UNLINK', key.staged(name))
  local old = redis.call('ZRANGE', key.pinned_batches(name), '-inf', batch_id - keep, 'BYSCORE')
  bulk.zrem(key.pinned_batches(name), old)
  bulk.hdel(key.pinned_watermarks(name), old)
end

-- Record that no batch of a query is open, and discard the staged reports.
local function close(query)
  redis.call('ZREM', key.open_pins, query.name)
  redis.call('ZREM', key.open_batches, query.name)
  query.open, query.staged = false, 0
  redis.call('UNLINK', key.staged(query.name))
end

-- Return the members and values of a table by partition and member, without the partitions.
local function columns_of(by_partition)
  local members, column = {}, {}
  for _, of_partition in pairs(by_partition) do
    for member, value in pairs(of_partition) do members[#members + 1], column[#column + 1] = member, value end
  end
  return members, column
end

-- Apply the staged reports of the open batch (see parts/staging) and close it; the caller must evaluate the job
-- afterwards. Return whether a substream that follows the clock has become idle.
function batches.commit_staged(query, staged)
  local name = query.name
  local delayed, rows_by_delay = columns_of(staged.delays)
  if #delayed > 0 then delays.measure(name, delayed, rows_by_delay, query.begun_merged) end
  observation.observe(name, staged.members, staged.event_times, staged.watermarks, (clock.observed_time(name)))
  if query.input_known_until then clock.observe_until(query, query.input_known_until) end
  for _, rows in pairs(staged.rows) do observation.count_rows('reported_rows', columns_of({rows})) end
  for _, rows in pairs(staged.future_rows) do observation.count_future(columns_of({rows})) end
  close(query)
  return idleness.expire(name, query.idle_clock)
end

-- Retire a query and undo the begin of its open batch. Another begin of the batch returns its pinned watermark.
function batches.give_up(query)
  if query.open then
    query.latest = query.latest > 0 and query.latest - 1 or nil
  end
  query.released, query.retired, query.begun = false, true, nil
  close(query)
end

return batches
