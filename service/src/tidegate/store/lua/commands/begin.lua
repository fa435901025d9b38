-- Open a batch and pin its watermark, or return the pinned watermark of a batch that has already begun. The begin
-- of a later batch commits the open batch, because Spark begins batch N only after batch N - 1 has returned.
--
-- args   token, run, batch_id, known (whether the client has a pinned watermark), pinned_watermark, keep, waited_ms,
--        input_age_ms (absent: unknown)
-- reply  pinned_watermark, replayed, joined, latest_event_time, previous_batch_id, previous_open, revision
-- errors query_fenced, query_retired, checkpoint_conflict, batch_forgotten, pinned_watermark_conflict, job_complete
-- @include parts/reply
-- @include parts/batches
-- @include parts/tokens
local job, number = state.job, values.number
local run, batch_id, known = args.run, args.batch_id, args.known

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
local pinned = args.pinned_watermark
if stored then
  if known and pinned ~= number(stored) then
    values.refuse('pinned_watermark_conflict', {pinned_watermark = number(stored)})
  end
  known, pinned = true, number(stored)
end
if job.is_complete and not is_replay then values.refuse('job_complete') end

tokens.accept(args.token)
local joined = not is_replay and joins(query)
batches.enter(query, run)
clock.add_outage(query, args.waited_ms)
if is_replay then
  if batch_id == query.latest then
    batches.take_over(query, run.run_id)
    -- The answer to the first begin may have been lost, and with it the evidence of a lost commit.
    if query.open then previous, was_open = query.previous, query.previous_open or false end
  end
  return finish(pinned, true, false, previous, was_open)
end
batches.move_to(query, run.query_id)
query.previous, query.previous_open = previous, was_open
local input_known_until = args.input_age_ms and job.now - args.input_age_ms
local commits, has_left = query.open, false
if commits then
  -- The store has lost the commit, and perhaps also reports of this batch. The batch is therefore no evidence that
  -- substreams are silent.
  query.input_known_until = nil
  has_left = batches.commit_staged(query, staging.read(query.name))
end
-- The known pinned watermark must hold W while the previous batch is committed.
if known then batches.open_batch(query, batch_id, pinned, input_known_until, args.keep) end
if commits then evaluate.evaluate(has_left) end
if not known then
  pinned = job.coalesced_watermark
  batches.open_batch(query, batch_id, pinned, input_known_until, args.keep)
end
return finish(pinned, false, joined, previous, was_open)
