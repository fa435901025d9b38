-- Advance the idle clock of a query that has processed all input and has no new data, unless a batch is open.
--
-- args   token, run, observed_ms, waited_ms, after_batch (absent: no check)
-- reply  applied: false if the clock did not advance
-- errors query_fenced, query_retired, checkpoint_conflict
-- @include parts/reply
-- @include parts/batches
-- @include parts/tokens
reply.load()
local query = queries.get(args.run.query)
batches.check_run(query, args.run)
batches.check_checkpoint(query, args.run)
tokens.accept(args.token)
batches.enter(query, args.run)
clock.add_outage(query, args.waited_ms)
local applied = not query.open and (not args.after_batch or args.after_batch == query.latest)
if applied then
  clock.observe_until(query, math.min(args.observed_ms, state.job.now))
  evaluate.evaluate(idleness.expire(query.name, query.idle_clock))
end
return reply.finish({applied = applied})
