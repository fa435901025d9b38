-- @include parts/observation
-- Batches and runs: begin, pin, stage, commit, and the checks that reject older runs and other checkpoints. A run is a
-- record of query, query_id and run_id. See tidegate.domain.batches.
local number, text, refuse = values.number, values.text, values.refuse
local job = state.job
local batches = {}

local FIELDS = {'query_id', 'run_id', 'latest', 'open', 'input_known_until', 'idle_clock', 'waited', 'outage', 'begun_by',
  'begun_merged', 'retired'}

-- Return a stored query. is_known is true if the query has made a call or was retired.
function batches.load(name)
  local found, query = redis.call('HMGET', key.query(name), unpack(FIELDS)), {name = name}
  for i, field in ipairs(FIELDS) do query[field] = found[i] or nil end
  for _, field in ipairs({'latest', 'input_known_until', 'idle_clock', 'waited', 'outage', 'begun_merged'}) do
    query[field] = number(query[field])
  end
  query.waited, query.outage = query.waited or 0, query.outage or 0
  query.open, query.retired, query.is_known = query.open == '1', query.retired == '1', query.run_id ~= nil
  return query
end

-- Refuse a run that a newer run has replaced, or whose query was retired.
function batches.check_run(query, run)
  if not query.is_known then return end
  local is_fenced = redis.call('ZSCORE', key.fenced_runs(query.name), run.run_id)
  if query.retired and (is_fenced or run.run_id == query.run_id) then refuse('query_retired', {query = query.name}) end
  if is_fenced then refuse('query_fenced', {current_run_id = query.run_id}) end
end

-- Refuse a run while a batch of another checkpoint is open.
function batches.check_checkpoint(query, run)
  if query.is_known and run.query_id ~= query.query_id and query.open then
    refuse('checkpoint_conflict', {open_batch_id = query.latest, open_query_id = query.query_id})
  end
end

-- Load the query of a batch that this run has begun.
function batches.begun_query(run, batch_id)
  local query = batches.load(run.query)
  batches.check_run(query, run)
  local is_begun = query.latest and batch_id <= query.latest
  if not is_begun or run.query_id ~= query.query_id or run.run_id ~= query.begun_by then
    refuse('batch_not_begun', {query = run.query, batch_id = batch_id})
  end
  return query
end

-- Record a call of a query.
function batches.contact(query)
  redis.call('HSET', key.query(query.name), 'last_contact', text(job.now))
  redis.call('ZADD', key.last_seen, text(job.observed_now), query.name)
  job.last_contact = job.now
end

local function fence(query)
  local name = key.fenced_runs(query.name)
  local _, newest = values.highest_of(name)
  redis.call('ZADD', name, text((newest or 0) + 1), query.run_id)
  redis.call('ZREMRANGEBYRANK', name, 0, -constants.PINNED_WATERMARKS_KEPT - 1)
  journal.write('fenced', 'query', query.name, 'run_id', query.run_id)
end

-- Make a run the current run of its query, and fence the previous run.
function batches.enter(query, run)
  redis.call('ZADD', key.queries, 'NX', text(job.now), query.name)
  redis.call('SADD', key.query_names, query.name)
  if not query.is_known then
    query.query_id, query.run_id, query.is_known = run.query_id, run.run_id, true
  elseif run.run_id ~= query.run_id then
    if query.run_id ~= '' then fence(query) end  -- '' if the query was retired before its first call
    query.run_id, query.waited = run.run_id, 0
  end
  redis.call('HSET', key.query(query.name), 'query_id', query.query_id, 'run_id', run.run_id, 'retired', '0')
  batches.contact(query)
end

-- Move a query without an open batch to a checkpoint. If this is another checkpoint, delete the previous batches.
function batches.move_to(query, query_id)
  if query_id == query.query_id then return end
  redis.call('DEL', key.pinned_watermarks(query.name), key.pinned_batches(query.name))
  redis.call('DEL', key.staged(query.name))
  redis.call('HDEL', key.query(query.name), 'latest', 'open', 'begun', 'staged')
  redis.call('HSET', key.query(query.name), 'query_id', query_id)
  query.query_id, query.latest, query.open = query_id, nil, false
end

-- Let a run continue the latest batch; discard reports that another run staged.
function batches.take_over(query, run_id)
  if query.begun_by == run_id then return end
  redis.call('DEL', key.staged(query.name))
  redis.call('HSET', key.query(query.name), 'begun_by', run_id, 'staged', '0')
end

-- Open a batch and pin its watermark; delete all but the last `keep` pinned watermarks.
function batches.open_batch(query, batch_id, pinned, input_known_until, keep)
  local name = query.name
  redis.call('HSET', key.query(name), 'latest', text(batch_id), 'open', '1', 'begun', text(job.now),
    'begun_by', query.run_id, 'released', '0', 'begun_merged', text(merge.merged_watermark()),
    'input_known_until', text(input_known_until), 'staged', '0')
  redis.call('HSET', key.pinned_watermarks(name), text(batch_id), text(pinned))
  redis.call('ZADD', key.pinned_batches(name), text(batch_id), text(batch_id))
  redis.call('ZADD', key.open_pins, values.score(pinned), name)
  redis.call('ZADD', key.open_batches, text(job.observed_now), name)
  redis.call('DEL', key.staged(name))
  local old = redis.call('ZRANGE', key.pinned_batches(name), '-inf', text(batch_id - keep), 'BYSCORE')
  bulk.zrem(key.pinned_batches(name), old)
  bulk.hdel(key.pinned_watermarks(name), old)
end

-- Record that no batch of a query is open, and discard the staged reports.
local function close(query)
  redis.call('ZREM', key.open_pins, query.name)
  redis.call('ZREM', key.open_batches, query.name)
  redis.call('HSET', key.query(query.name), 'open', '0', 'staged', '0')
  redis.call('DEL', key.staged(query.name))
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
  query.open = false
  return idleness.expire(name, query.idle_clock)
end

-- Retire a query and undo the begin of its open batch. Another begin of the batch returns its pinned watermark.
function batches.give_up(query)
  if query.open then
    if query.latest > 0 then
      redis.call('HSET', key.query(query.name), 'latest', text(query.latest - 1))
    else
      redis.call('HDEL', key.query(query.name), 'latest')
    end
  end
  redis.call('HSET', key.query(query.name), 'released', '0', 'retired', '1')
  redis.call('HDEL', key.query(query.name), 'begun')
  close(query)
end

return batches
