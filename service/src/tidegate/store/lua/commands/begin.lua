-- Open a batch and pin its watermark, or return the pinned watermark of a batch that has already begun. The begin
-- of a later batch commits the open batch, because Spark begins batch N only after batch N - 1 has returned. If the open
-- batch is large, this runs in steps (see parts/steps).
--
-- args   token, run, batch_id, known (whether the client has a pinned watermark), pinned_watermark, keep, waited_ms,
--        input_age_ms (absent: unknown),
--        joined (absent: see parts/staging): version, and ranges of pieces
-- reply  pinned_watermark, replayed, joined, latest_event_time, previous_batch_id, previous_open, revision; or join: the
--        version of the reports of the open batch, which the coordinator must join
-- errors query_fenced, query_retired, checkpoint_conflict, batch_forgotten, pinned_watermark_conflict, job_complete
-- @include parts/steps
-- @include parts/batches
-- @include parts/tokens
local job, number = state.job, values.number
local run, batch_id = args.run, args.batch_id

local function finish(pinned, replayed, joined, previous, was_open)
  return reply.finish({pinned_watermark = pinned, replayed = replayed, joined = joined,
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
  journal.write('joined', 'query', query.name)
  return true
end

-- Begin again a batch that the query has begun before.
local function replay(query, pinned, previous, was_open)
  if batch_id == query.latest then
    batches.take_over(query, run.run_id)
    -- The answer to the first begin may have been lost, and with it the evidence of a lost commit.
    if query.open then previous, was_open = query.previous, query.previous_open or false end
  end
  return finish(pinned, true, false, previous, was_open)
end

local function start(record)
  reply.load()
  local query = queries.get(run.query)
  batches.check_run(query, run)
  batches.check_checkpoint(query, run)
  -- An abandoned batch begins again with its pinned watermark.
  local is_same = query.run_id and run.query_id == query.query_id or false
  local previous, was_open = is_same and query.latest or nil, is_same and query.open or false
  local is_replay = previous ~= nil and batch_id <= previous
  local stored = is_same and redis.call('HGET', key.pinned_watermarks(query.name), batch_id)
  if is_replay and not stored then values.refuse('batch_forgotten', {latest_batch_id = query.latest}) end
  local known, pinned = args.known, args.pinned_watermark
  if stored then
    if known and pinned ~= number(stored) then
      values.refuse('pinned_watermark_conflict', {pinned_watermark = number(stored)})
    end
    known, pinned = true, number(stored)
  end
  if job.is_complete and not is_replay then values.refuse('job_complete') end
  local version = not is_replay and query.open and staging.to_join(query)
  if version then return {map = {join = version}} end

  tokens.accept(args.token)
  local joined = not is_replay and joins(query)
  batches.enter(query, run)
  clock.add_outage(query, args.waited_ms)
  if is_replay then return replay(query, pinned, previous, was_open) end
  batches.move_to(query, run.query_id)
  query.previous, query.previous_open = previous, was_open
  record.known, record.pinned, record.joined, record.previous, record.was_open = known, pinned, joined, previous, was_open
  record.commits = query.open
  -- The store has lost the commit, and perhaps also reports of this batch. The batch is therefore no evidence that
  -- substreams are silent.
  if query.open then query.input_known_until = nil end
end

local function open(record)
  local query, pinned = queries.get(run.query), record.pinned
  local input_known_until = args.input_age_ms and job.now - args.input_age_ms
  -- The known pinned watermark must hold W while the previous batch is committed.
  if record.known then batches.open_batch(query, batch_id, pinned, input_known_until, args.keep) end
  if record.commits then evaluate.evaluate(record.has_left) end
  if not record.known then
    pinned = job.coalesced_watermark
    batches.open_batch(query, batch_id, pinned, input_known_until, args.keep)
  end
  return finish(pinned, false, record.joined, record.previous, record.was_open)
end

local measure, learn, observe, count, end_batch = batches.commit_staged(run.query)

return steps.run({start, measure, learn, observe, count, end_batch, open})
