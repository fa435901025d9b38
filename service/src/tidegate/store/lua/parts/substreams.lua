-- @include parts/observation
-- @include parts/steps
-- Steps of the commands that change the set of substreams.
local job, config = state.job, state.config
local number, highest, above = values.number, values.highest, values.above
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

-- Return the watermark of each member, or false.
local function watermarks_of(members)
  local active, frozen, driven, found = bulk.zmscore(key.active, members), bulk.zmscore(key.frozen, members), {}, {}
  for i, member in ipairs(members) do
    if active[i] or frozen[i] then
      found[i] = number(active[i] or frozen[i]) or false
    else
      driven[#driven + 1] = member
      found[i] = false
    end
  end
  for at, packed in ipairs(bulk.hmget(key.clock_driven, driven)) do
    if packed then
      driven[driven[at]] = clock_driven.own_watermark(clock_driven.read(packed), policy.of(driven[at]))
    end
  end
  for i, member in ipairs(members) do found[i] = found[i] or driven[member] or false end
  return found
end

-- Return the highest watermark and the highest max event time of members, and of two earlier results.
local function highest_of(members, watermark, event_time)
  for _, value in ipairs(watermarks_of(members)) do watermark = highest(value or nil, watermark) end
  for _, value in ipairs(max_event_times.of(members)) do event_time = highest(value or nil, event_time) end
  return watermark, event_time
end

-- Note the highest values of members in the record of a command that is going to remove them.
function substreams.note_removed(record, members)
  record.removed_watermark, record.removed_event_time =
    highest_of(members, record.removed_watermark, record.removed_event_time)
end

-- Let the maxima of the job be those of the remaining members, so that the removed ones never move it again. This is a
-- phase (see parts/steps).
function substreams.lower_maxima(record)
  local watermark, event_time = record.removed_watermark, record.removed_event_time
  local is_highest = watermark and not above(job.max_watermark, watermark)
  local is_latest = event_time and event_time == job.max_event_time
  if is_highest or is_latest then
    local sets = advancing.sets()
    sets[#sets + 1], sets[#sets + 2] = key.active, key.frozen
    local remain = steps.each(record, sets, function(members)
      record.left_watermark, record.left_event_time = highest_of(members, record.left_watermark, record.left_event_time)
    end)
    if remain then return true end
  end
  if is_latest then job.max_event_time = record.left_event_time end
  if is_highest then
    if above(job.max_watermark, record.left_watermark) then job.max_watermark = record.left_watermark end
    local latest = highest(job.max_watermark, job.coalesced_watermark)
    if above(job.merged_highest, latest) then job.merged_highest = latest end
  end
  -- A cell up to this watermark may be of a removed substream. Without the cell, retention acts later.
  for i, cell in ipairs(watermark and job.retention and job.retention.cells or {}) do
    if cell and cell <= watermark then job.retention.cells[i] = false end
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
