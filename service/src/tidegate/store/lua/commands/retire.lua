-- Retire a query: abandon its open batch, and move its substreams to a successor or evict them. A query that is its own
-- successor keeps its substreams and may begin on another checkpoint. Runs in steps (see parts/steps).
--
-- args   query, successor (absent: evict), actor, reason
-- reply  applied
-- errors query_not_found
-- @include parts/steps
-- @include parts/batches
-- @include parts/substreams
local job = state.job
local name, successor = args.query, args.successor

-- Move members of a sorted set to another set under other names. score (absent: the present one): their new score.
local function move(from_key, to_key, from, to, score)
  local present, moved = {}, {}
  for i, present_score in ipairs(bulk.zmscore(from_key, from)) do
    if present_score then
      present[#present + 1] = from[i]
      moved[#moved + 1], moved[#moved + 2] = score or present_score, to[i]
    end
  end
  bulk.zrem(from_key, present)
  bulk.zadd(to_key, nil, moved)
end

local function move_fields(name_, from, to)
  local moved = {}
  for i, value in ipairs(bulk.hmget(name_, from)) do
    if value then moved[#moved + 1], moved[#moved + 2] = to[i], value end
  end
  bulk.hset(name_, moved)
  bulk.hdel(name_, from)
end

-- Add the counters of members to those under other names.
local function move_rows(from, to)
  for _, class in ipairs(substreams.ROW_CLASSES) do
    local fields = {}
    for i, member in ipairs(from) do fields[i] = class .. ' ' .. member end
    for i, rows in ipairs(bulk.hmget(key.rows, fields)) do
      if rows then bulk.add(key.rows, class .. ' ' .. to[i], rows) end
    end
    bulk.hdel(key.rows, fields)
  end
end

-- Move substreams with their states to the successor; their silence starts now.
local function hand_over(from, to, now)
  redis.call('SADD', key.query_names, successor)
  observation.remove_placeholder(successor)
  local sets = {key.max_event_times, key.active, key.frozen, key.forced_idle, key.since, key.constant, key.advancing,
    key.next_change, key.idle_constant, key.idle_advancing, key.idle_lagged}
  for _, limit in ipairs(constants.POLICY_LIMITS) do sets[#sets + 1] = key.lagged(limit) end
  for _, set in ipairs(sets) do move(set, set, from, to) end
  move(key.done, key.done, from, to, now)
  move(key.last_events(name), key.last_events(successor), from, to, now)
  move(key.idle(name), key.idle(successor), from, to, now)
  for _, hash in ipairs({key.clock_driven, key.delays, key.learned_lags}) do move_fields(hash, from, to) end
  move_rows(from, to)
end

-- Move members to the successor, unless it has substreams with their names; evict the others.
local function remove(record, members)
  if successor then
    local names, from, to = {}, {}, {}
    for i, member in ipairs(members) do names[i] = successor .. '/' .. policy.name_of(member) end
    for i, is_taken in ipairs(membership.known(names)) do
      if not is_taken then from[#from + 1], to[#to + 1] = members[i], names[i] end
    end
    if #from > 0 then hand_over(from, to, (clock.observed_time(successor))) end
  end
  substreams.note_removed(record, members)
  substreams.forget(name, members)
  journal.add(record.removed, members)
  return #members
end

-- Abandon the open batch of a query that keeps its substreams.
local function give_up(query)
  local applied = query.open
  if applied then
    batches.give_up(query)
    journal.write_action('hand_over', name, nil, 'successor', successor)
  end
  evaluate.evaluate(true)
  return reply.finish({applied = applied})
end

return steps.run({
  function(record)
    clock.read()
    record.removed = journal.summary()
  end,
  function(record)  -- a query may have done substreams only
    return steps.each(record, {key.done}, function(members)
      record.has_done = record.has_done or #substreams.of_query(name, members) > 0
    end)
  end,
  function(record)
    clock.advance(clock.now())
    reply.remember()
    local query, is_missing = queries.get(name), redis.call('SISMEMBER', key.missing_queries, name) == 1
    local is_empty = not record.has_done and not is_missing
      and redis.call('EXISTS', key.last_events(name), key.idle(name)) == 0
    if is_empty and not query.run_id then values.refuse('query_not_found', {query = name}) end
    if is_empty and query.retired then return reply.finish({applied = false}) end
    if successor == name then return give_up(query) end
    if not query.run_id then  -- the query has made no call: store it as retired
      redis.call('ZADD', key.queries, 'NX', job.now, name)
      redis.call('SADD', key.query_names, name)
      query.query_id, query.run_id, query.last_contact = '', '', job.now
    end
    batches.give_up(query)
    redis.call('ZREM', key.last_seen, name)
    observation.remove_placeholder(name)
  end,
  function(record)
    return steps.each(record, {key.last_events(name), key.idle(name)}, function(members) return remove(record, members) end)
  end,
  function(record)
    return steps.each(record, {key.done}, function(members) return remove(record, substreams.of_query(name, members)) end)
  end,
  substreams.lower_maxima,
  function(record)
    journal.write_action(successor and 'hand_over' or 'retire', name, record.removed, 'successor', successor)
    evaluate.evaluate(true)
    return reply.finish({applied = true})
  end,
})
