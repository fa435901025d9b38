-- @include parts/observation
-- @include parts/staging
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
  staging.discard(query)
  query.query_id, query.latest, query.open, query.begun = query_id, nil, false, nil
end

-- Let a run continue the latest batch; discard reports that another run staged.
function batches.take_over(query, run_id)
  if query.begun_by == run_id then return end
  staging.discard(query)
  query.begun_by = run_id
end

-- Open a batch and pin its watermark; delete all but the last `keep` pinned watermarks.
function batches.open_batch(query, batch_id, pinned, input_known_until, keep)
  local name = query.name
  query.latest, query.open, query.released = batch_id, true, false
  query.begun, query.begun_by, query.begun_merged = job.now, query.run_id, merge.merged_watermark()
  query.input_known_until = input_known_until
  redis.call('HSET', key.pinned_watermarks(name), batch_id, pinned or '')
  redis.call('ZADD', key.pinned_batches(name), batch_id, batch_id)
  redis.call('ZADD', key.open_pins, values.score(pinned), name)
  redis.call('ZADD', key.open_batches, job.observed_now, name)
  staging.discard(query)
  local old = redis.call('ZRANGE', key.pinned_batches(name), '-inf', batch_id - keep, 'BYSCORE')
  bulk.zrem(key.pinned_batches(name), old)
  bulk.hdel(key.pinned_watermarks(name), old)
end

-- Record that no batch of a query is open, and discard the staged reports.
local function close(query)
  redis.call('ZREM', key.open_pins, query.name)
  redis.call('ZREM', key.open_batches, query.name)
  query.open = false
  staging.discard(query)
end

-- Return phases (see parts/steps) that apply the staged reports of the open batch of a query and close it, if the record
-- has commits. record.has_left: whether a substream that follows the clock has become idle. The last phase is followed
-- by an evaluation.
function batches.commit_staged(name)
  local function each(column)
    return function(record, visit)
      return record.commits and staging.each(record, queries.get(name), column, visit) or false
    end
  end
  local measure, learn = delays.phases(name, each('delayed'), function() return queries.get(name).begun_merged end)
  local function observe(record)
    record.active = record.active or journal.summary()
    return each('members')(record, function(piece)
      local _, active = observation.observe(name, piece, (clock.observed_time(name)))
      journal.add(record.active, active)
    end)
  end
  local function count(record)
    return each('rows')(record, function(piece)
      for _, columns in ipairs(piece.rows) do observation.count_rows('reported_rows', unpack(columns)) end
      for _, columns in ipairs(piece.future_rows) do observation.count_future(unpack(columns)) end
    end)
  end
  local function end_batch(record)
    if not record.commits then return end
    journal.write_substreams('active', name, record.active)
    local query = queries.get(name)
    if query.input_known_until then clock.observe_until(query, query.input_known_until) end
    close(query)
    record.has_left = idleness.expire(name, query.idle_clock)
  end
  return measure, learn, observe, count, end_batch
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
