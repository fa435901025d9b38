-- Deletes a job and all it held; a tombstone stays, so that reports are told, and the next incarnation is a new one.
--
-- KEYS  1 the job
-- ARGV  now
-- Reply ok, or error: job_not_found (also where it was never created). Deleting twice is ok.
-- @include parts/job
local refused = load_job()
if refused and refused[2] == 'job_not_found' then return refused end
if refused then return {'ok'} end
for _, query in ipairs(owners()) do
  redis.call('UNLINK', K.expiry(query), K.quiet(query), K.query(query), K.pins(query), K.pin_order(query),
    K.fenced(query), K.staged(query), K.staged_rows(query))
end
redis.call('UNLINK', K.tops, K.live, K.parked, K.done, K.counts, K.queries, K.owners, K.open)
redis.call('DEL', K.job)
redis.call('HSET', K.job, 'state', 'deleted', 'incarnation', fmt(J.incarnation), 'deleted', fmt(J.now))
return {'ok'}
