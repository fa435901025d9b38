-- @include parts/observation
-- @include parts/steps
-- Steps of the commands that change the set of substreams.
local job, config = state.job, state.config
local substreams = {}

substreams.ROW_CLASSES = {'reported_rows', 'future_rows', 'on_time', 'updated', 'late', 'null_event_time', 'future',
  'diverted'}

-- Visit the pieces of a command with members.
function substreams.each(record, visit)
  return steps.pieces(record, args.stored and args.members, visit)
end

-- Refuse a command if one of its members is unknown. Return whether pieces remain.
function substreams.check_known(record, query)
  return steps.check(record, args.stored and args.members, function(piece)
    local _, unknown = membership.split(piece.members)
    return unknown
  end, function(unknown)
    values.refuse('substream_not_found', {query = query, substreams = unknown})
  end)
end

-- Remove known members of a query, in any state.
function substreams.forget(query, members)
  if #members == 0 then return end
  for _, name in ipairs({key.max_event_times, key.active, key.frozen, key.done, key.forced_idle, key.since,
    key.last_events(query), key.idle(query)}) do
    bulk.zrem(name, members)
  end
  advancing.remove(members)
  for _, name in ipairs({key.clock_driven, key.delays, key.learned_lags}) do bulk.hdel(name, members) end
  for _, class in ipairs(substreams.ROW_CLASSES) do
    local fields = {}
    for i, member in ipairs(members) do fields[i] = class .. ' ' .. member end
    bulk.hdel(key.rows, fields)
  end
end

-- Return the members of a list that belong to a query.
function substreams.of_query(query, members)
  local own, prefix = {}, query .. '/'
  for _, member in ipairs(members) do
    if string.sub(member, 1, #prefix) == prefix then own[#own + 1] = member end
  end
  return own
end

-- Return the queries with per-query keys, '' (reports without batches) first. The list may be too long for unpack.
function substreams.query_names()
  local names = redis.call('SMEMBERS', key.query_names)
  table.sort(names, values.sorts_before)
  table.insert(names, 1, '')
  return names
end

local function remove_unexpected()
  local expected = {}
  for _, query in ipairs(config.expected_queries) do expected[query] = true end
  for _, query in ipairs(redis.call('SMEMBERS', key.missing_queries)) do
    if not expected[query] then
      observation.remove_placeholder(query)
      if not queries.get(query).run_id then redis.call('ZREM', key.last_seen, query) end
    end
  end
end

-- Add a placeholder for each expected query without substreams, and remove all other placeholders. has_done: the queries
-- with done substreams, as names of true fields.
function substreams.expect_queries(has_done)
  remove_unexpected()
  for _, query in ipairs(config.expected_queries) do
    local is_known = has_done[query] or redis.call('EXISTS', key.last_events(query), key.idle(query)) > 0
    if not is_known and not queries.get(query).retired then
      local placeholder = query .. '/'
      redis.call('SADD', key.missing_queries, query)
      redis.call('SADD', key.query_names, query)
      redis.call('ZADD', key.active, '-inf', placeholder)
      redis.call('ZADD', key.last_events(query), (clock.observed_time(query)), placeholder)
      redis.call('ZADD', key.last_seen, 'NX', job.observed_now, query)
    end
  end
end

return substreams
