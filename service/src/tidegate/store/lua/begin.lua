-- Opens a batch and pins it at C, or gives the pin of one that was begun before. A begin of a later batch commits the
-- one before: Spark begins N only after N - 1 has returned.
--
-- KEYS  1 the job
-- ARGV  now · token incarnation · token watermark ('' '' without) · query · query_id · run_id · batch
--       · pin known (1/0) · pin ('' : none) · pins to keep · fenced runs to keep · waited
-- Reply ok, ... (parts/answer), pin, replayed (1/0)
--       or error: job_not_found, job_deleted, job_complete, query_fenced <run>, checkpoint_conflict <batch> <query_id>,
--       batch_forgotten <latest>, pin_conflict <pin>
-- @include parts/answer
-- @include parts/settle
local token = read_token()
local query, query_id, run_id, batch = arg(), arg(), arg(), tonumber(arg())
local known, known_pin, keep = arg() == '1', arg(), tonumber(arg())
local fenced_kept, waited = tonumber(arg()), tonumber(arg())

local refused = load_job()
if refused then return refused end
load_query(query)
refused = check_run(run_id) or check_checkpoint(query_id)
if refused then return refused end

if Q.known and query_id == Q.query_id and Q.latest and batch <= Q.latest then
  local pin = redis.call('HGET', K.pins(query), fmt(batch))
  if not pin then return problem('batch_forgotten', fmt(Q.latest)) end
  if known and known_pin ~= pin then return problem('pin_conflict', out(num(pin))) end
  heal(token)
  enter(query_id, run_id, J.now, fenced_kept)
  if batch == Q.latest then take_over(run_id) end
  wait(waited)
  save_job()
  return answer(out(num(pin)), '1')
end

if J.complete then return problem('job_complete') end
heal(token)
enter(query_id, run_id, J.now, fenced_kept)
move_to(query_id)
wait(waited)
if Q.open then settle() end
local pin = J.coalesced
if known then pin = num(known_pin) end
redis.call('HSET', K.query(query), 'latest', fmt(batch), 'open', '1', 'begun', fmt(J.now),
  'begun_by', run_id)
redis.call('HSET', K.pins(query), fmt(batch), fmt(pin))
redis.call('ZADD', K.pin_order(query), fmt(batch), fmt(batch))
redis.call('ZADD', K.open, score(pin), query)
local old = redis.call('ZRANGE', K.pin_order(query), '-inf', fmt(batch - keep), 'BYSCORE')
if #old > 0 then
  zrem(K.pin_order(query), old)
  for _, batch_id in ipairs(old) do redis.call('HDEL', K.pins(query), batch_id) end
end
save_job()
return answer(out(pin), '0')
