-- Caught up, no new data, seen to be so at a moment of the coordinator's own time: moves the query's idle clock, unless
-- a batch is open, or the query has finished another than the latest here. Late or repeated, it proves no more than it
-- did.
--
-- KEYS  1 the job · 2 the jobs to sweep
-- ARGV  now · absent after · not after · token incarnation · token watermark ('' '' without)
--       · query · query_id · run_id · observed · fenced runs to keep · waited
--       · after batch ('' for any)
-- Reply ok, ... (parts/answer), applied (0: the clock stands still)
--       or error: job_not_found, job_deleted, query_fenced <run>, query_retired <query>,
--       checkpoint_conflict <batch> <query_id>
-- @include parts/answer
-- @include parts/run
local token = read_token()
local query, query_id, run_id, observed = arg(), arg(), arg(), tonumber(arg())
local fenced_kept, waited, after = tonumber(arg()), tonumber(arg()), num(arg())
local refused = load_job()
if refused then return refused end
load_query(query)
refused = check_run(run_id) or check_checkpoint(query_id)
if refused then return refused end
heal(token)
enter(query_id, run_id, fenced_kept)
wait(waited)
local applied = not Q.open and (not after or after == Q.latest)
if applied then
  observe_until(math.min(observed, J.now))
  look(nil, false, expire(query, Q.idle_clock))
end
return reply(applied and '1' or '0')
