-- Retire a query: abandon its open batch, and move its substreams to a successor or evict them. A query that is its own
-- successor keeps its substreams and may begin on another checkpoint.
--
-- args   query, successor (absent: evict), actor, reason
-- reply  applied
-- errors query_not_found
-- @include parts/reply
-- @include parts/batches
-- @include parts/substreams
local job = state.job
local name, successor = args.query, args.successor
reply.load()
local query, own = queries.get(name), substreams.members_of(name)
local is_missing = redis.call('SISMEMBER', key.missing_queries, name) == 1
if not query.run_id and #own == 0 and not is_missing then values.refuse('query_not_found', {query = name}) end
if query.retired and #own == 0 and not is_missing then return reply.finish({applied = false}) end

if successor == name then
  local applied = query.open
  if applied then
    batches.give_up(query)
    journal.write_action('hand_over', name, nil, 'successor', successor)
  end
  evaluate.evaluate(true)
  return reply.finish({applied = applied})
end

local function move(from_key, to_key, from, to, score)
  local present = redis.call('ZSCORE', from_key, from)
  if not present then return end
  redis.call('ZREM', from_key, from)
  redis.call('ZADD', to_key, score or present, to)
end

local function move_field(name_, from, to)
  local value = redis.call('HGET', name_, from)
  if value then redis.call('HSET', name_, to, value) end
  redis.call('HDEL', name_, from)
end

-- Move a substream with its state to the successor; its silence starts now.
local function hand_over_member(from, to, now)
  redis.call('SADD', key.query_names, successor)
  observation.remove_placeholder(successor)
  local sets = {key.max_event_times, key.active, key.frozen, key.forced_idle, key.since, key.constant, key.advancing,
    key.next_change}
  for _, limit in ipairs(constants.POLICY_LIMITS) do sets[#sets + 1] = key.lagged(limit) end
  for _, set in ipairs(sets) do move(set, set, from, to) end
  move(key.done, key.done, from, to, now)
  move(key.last_events(name), key.last_events(successor), from, to, now)
  move(key.idle(name), key.idle(successor), from, to, now)
  for _, hash in ipairs({key.clock_driven, key.delays, key.learned_lags}) do move_field(hash, from, to) end
  for _, class in ipairs(substreams.ROW_CLASSES) do
    local rows = redis.call('HGET', key.rows, class .. ' ' .. from)
    if rows then bulk.add(key.rows, class .. ' ' .. to, rows) end
    redis.call('HDEL', key.rows, class .. ' ' .. from)
  end
end

if not query.run_id then  -- the query has made no call: store it as retired
  redis.call('ZADD', key.queries, 'NX', job.now, name)
  redis.call('SADD', key.query_names, name)
  query.query_id, query.run_id, query.last_contact = '', '', job.now
end
batches.give_up(query)
redis.call('ZREM', key.last_seen, name)
if successor then
  local names, now = {}, (clock.observed_time(successor))
  for i, member in ipairs(own) do names[i] = successor .. '/' .. policy.name_of(member) end
  local taken = membership.known(names)
  for i, member in ipairs(own) do
    if not taken[i] then hand_over_member(member, names[i], now) end
  end
end
observation.remove_placeholder(name)
substreams.forget(name, own)
journal.write_action(successor and 'hand_over' or 'retire', name, own, 'successor', successor)
evaluate.evaluate(true)
return reply.finish({applied = true})
