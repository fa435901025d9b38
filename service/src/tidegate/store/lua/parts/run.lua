-- @include parts/journal
-- Who speaks: query, its checkpoint (query_id), its start (run_id). Checks first, writes after.
local Q = {}

local QUERY_FIELDS = {'query_id', 'run_id', 'latest', 'open', 'taken_in', 'idle_clock', 'waited', 'lost',
  'begun_by', 'retired'}

local function load_query(query)
  local values = redis.call('HMGET', K.query(query), unpack(QUERY_FIELDS))
  Q.name = query
  Q.query_id, Q.run_id = values[1], values[2]
  Q.latest, Q.open, Q.taken_in, Q.idle_clock = num(values[3]), values[4] == '1', num(values[5]), num(values[6])
  Q.waited, Q.lost = num(values[7]) or 0, num(values[8]) or 0
  Q.begun_by, Q.retired = values[9], values[10] == '1'
  Q.known = Q.run_id ~= false and Q.run_id ~= nil
end

local function check_run(run_id)
  if not Q.known then return nil end
  local fenced = redis.call('ZSCORE', K.fenced(Q.name), run_id)
  if Q.retired and (fenced or run_id == Q.run_id) then return problem('query_retired', Q.name) end
  if fenced then return problem('query_fenced', Q.run_id) end
end

local function check_checkpoint(query_id)
  if Q.known and query_id ~= Q.query_id and Q.open then
    return problem('checkpoint_conflict', fmt(Q.latest), Q.query_id)
  end
end

-- For what belongs to a batch: it must have begun, and the speaker be the run that began the latest one.
local function check_speaker(query_id, run_id, batch)
  local refused = check_run(run_id)
  if refused then return refused end
  if not Q.known or query_id ~= Q.query_id or run_id ~= Q.begun_by or not Q.latest or batch > Q.latest then
    return problem('batch_not_begun', Q.name, fmt(batch))
  end
end

local function contact()
  redis.call('HSET', K.query(Q.name), 'last_contact', fmt(J.now))
  redis.call('ZADD', K.contact, fmt(J.t), Q.name)
  J.heard = J.now
end

local function unstage(query)
  redis.call('DEL', K.staged(query), K.staged_watermarks(query), K.staged_rows(query), K.staged_future(query),
    K.staged_delays(query))
end

-- Makes this run the current one; the one before is fenced from now on.
local function enter(query_id, run_id, fenced_kept)
  local query = Q.name
  redis.call('ZADD', K.queries, 'NX', fmt(J.now), query)
  redis.call('SADD', K.owners, query)
  if not Q.known then
    Q.query_id, Q.run_id, Q.known = query_id, run_id, true
  elseif run_id ~= Q.run_id then
    if Q.run_id ~= '' then  -- else it was retired before it ever came
      local _, newest = highest_of(K.fenced(query))
      redis.call('ZADD', K.fenced(query), fmt((newest or 0) + 1), Q.run_id)
      redis.call('ZREMRANGEBYRANK', K.fenced(query), 0, -fenced_kept - 1)
      record('fenced', 'query', query, 'run_id', Q.run_id)
    end
    Q.run_id, Q.waited = run_id, 0
  end
  redis.call('HSET', K.query(query), 'query_id', Q.query_id, 'run_id', run_id, 'retired', '0')
  contact()
end

-- A batch is begun on this checkpoint. Another one's batches, none of which is open, are forgotten.
local function move_to(query_id)
  if query_id == Q.query_id then return end
  redis.call('DEL', K.pins(Q.name), K.pin_order(Q.name))
  unstage(Q.name)
  redis.call('HDEL', K.query(Q.name), 'latest', 'open', 'begun')
  redis.call('HSET', K.query(Q.name), 'query_id', query_id)
  Q.query_id, Q.latest, Q.open = query_id, nil, false
end

-- The latest batch is begun by this run; what another staged for it goes.
local function take_over(run_id)
  if Q.begun_by == run_id then return end
  unstage(Q.name)
  redis.call('HSET', K.query(Q.name), 'begun_by', run_id)
end

-- The open batch is as if it had never begun; only its pin is kept, for it may begin again.
local function give_up()
  if Q.open then
    if Q.latest > 0 then
      redis.call('HSET', K.query(Q.name), 'latest', fmt(Q.latest - 1))
    else
      redis.call('HDEL', K.query(Q.name), 'latest')
    end
  end
  redis.call('HSET', K.query(Q.name), 'open', '0', 'released', '0', 'retired', '1')
  redis.call('HDEL', K.query(Q.name), 'begun')
  redis.call('ZREM', K.open, Q.name)
  redis.call('ZREM', K.begun, Q.name)
  unstage(Q.name)
end

-- How long the current run has waited for the coordinator in all: that was no silence of anybody. What is in a query's
-- observed time (its idle clock, the last events of its substreams) leaves it out.
local function wait(waited)
  Q.lost = Q.lost + math.max(0, waited - Q.waited)
  Q.waited = math.max(waited, Q.waited)
  redis.call('HSET', K.query(Q.name), 'waited', fmt(Q.waited), 'lost', fmt(Q.lost))
end

local function observe_until(time)
  if above(time - Q.lost, Q.idle_clock) then Q.idle_clock = time - Q.lost end
  redis.call('HSET', K.query(Q.name), 'idle_clock', fmt(Q.idle_clock))
end
