-- Opens a batch and pins it at C, or gives the pin of one that was begun before. A begin of a later batch commits the
-- one before: Spark begins N only after N - 1 has returned.
--
-- KEYS  1 the job · 2 the jobs to sweep
-- ARGV  now · absent after · not after · token incarnation · token watermark ('' '' without)
--       · query · query_id · run_id · batch · pin known (1/0) · pin ('' : none) · pins to keep · fenced runs to keep
--       · waited · age of the input ('' : not known)
-- Reply ok, ... (parts/answer), pin, replayed (1/0), joined (1/0), latest event time, previous batch, it was open (1/0),
--       revision
--       or error: job_not_found, job_deleted, job_complete, query_fenced <run>, query_retired <query>,
--       checkpoint_conflict <batch> <query_id>, batch_forgotten <latest>, pinned_watermark_conflict <pin>
-- @include parts/answer
-- @include parts/settle
local token = read_token()
local query, query_id, run_id, batch = arg(), arg(), arg(), tonumber(arg())
local known, known_pin, keep = arg() == '1', arg(), tonumber(arg())
local fenced_kept, waited, input_age = tonumber(arg()), tonumber(arg()), num(arg())

local refused = load_job()
if refused then return refused end
local revision = redis.call('HGET', K.job, 'revision')
load_query(query)
refused = check_run(run_id) or check_checkpoint(query_id)
if refused then return refused end

-- A batch that was given up keeps its pin, and begins again with it.
local same = Q.known and query_id == Q.query_id
local previous, was_open = same and Q.latest or nil, same and Q.open and '1' or '0'
local replay = same and Q.latest ~= nil and batch <= Q.latest
local stored = same and redis.call('HGET', K.pins(query), fmt(batch))
if replay and not stored then return problem('batch_forgotten', fmt(Q.latest)) end
if stored and known and known_pin ~= stored then return problem('pinned_watermark_conflict', out(num(stored))) end

if replay then
  heal(token)
  enter(query_id, run_id, fenced_kept)
  if batch == Q.latest then take_over(run_id) end
  wait(waited)
  return reply(out(num(stored)), '1', '0', out(latest_event_time()), out(previous), was_open, revision)
end

if J.complete then return problem('job_complete') end
heal(token)
local fresh = not Q.known or (Q.retired and #redis.call('ZRANGE', K.expiry(query), 0, 0) == 0
  and #redis.call('ZRANGE', K.quiet(query), 0, 0) == 0)
local joined = fresh and J.coalesced ~= nil
for _, expected in ipairs(R.expected or {}) do joined = joined and expected ~= query end
if joined then record('joined', 'query', query) end
enter(query_id, run_id, fenced_kept)
move_to(query_id)
wait(waited)
local commits, left = Q.open, false
if commits then left = settle() end

local function open_at(pin)
  redis.call('HSET', K.query(query), 'latest', fmt(batch), 'open', '1', 'begun', fmt(J.now), 'begun_by', run_id,
    'released', '0', 'merged', fmt(higher(J.offered, J.coalesced)), 'taken_in', input_age and fmt(J.now - input_age) or '')
  redis.call('HSET', K.pins(query), fmt(batch), fmt(pin))
  redis.call('ZADD', K.pin_order(query), fmt(batch), fmt(batch))
  redis.call('ZADD', K.open, score(pin), query)
  redis.call('ZADD', K.begun, fmt(J.t), query)
  unstage(query)
end

-- A pin that is known already holds the watermark while the batch before is committed, not only after.
local pin = num(stored or known_pin)
if stored or known then open_at(pin) end
if commits then look(nil, false, left) end
if not (stored or known) then
  pin = J.coalesced
  open_at(pin)
end
local old = redis.call('ZRANGE', K.pin_order(query), '-inf', fmt(batch - keep), 'BYSCORE')
if #old > 0 then
  zrem(K.pin_order(query), old)
  hdel(K.pins(query), old)
end
return reply(out(pin), '0', joined and '1' or '0', out(latest_event_time()), out(previous), was_open, revision)
