-- The queries of a job with their latest batches. Changes nothing.
--
-- KEYS  1 the job
-- ARGV  now · absent after · not after
-- Reply ok, ... (parts/answer), rows: each query, query_id, run_id, latest batch, open (1/0), pin, begun, idle clock,
--       last contact, released (1/0), retired (1/0)
--       or error: job_not_found, job_deleted
-- @include parts/answer
local refused = load_job()
if refused then return refused end
local rows = {}
for _, query in ipairs(redis.call('ZRANGE', K.queries, 0, -1)) do
  local f = redis.call('HMGET', K.query(query), 'query_id', 'run_id', 'latest', 'open', 'begun', 'idle_clock',
    'last_contact', 'lost', 'released', 'retired')
  local pin = f[3] and redis.call('HGET', K.pins(query), f[3])
  local idle_clock = num(f[6])
  if idle_clock then idle_clock = idle_clock + (num(f[8]) or 0) end
  rows[#rows + 1] = {query, f[1], f[2], f[3], f[4] == '1' and '1' or '0', out(num(pin)), f[5], out(idle_clock), f[7],
    f[4] == '1' and f[9] == '1' and '1' or '0', f[10] == '1' and '1' or '0'}
end
return answer(rows)
