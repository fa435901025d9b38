-- @include parts/state
-- The journal of a job. See tidegate.domain.journal. Details that are nil or '' are omitted.
local text = values.text
local job = state.job
local journal = {}

-- Append a record with details: alternating names and values.
function journal.write(kind, ...)
  local entry, details = {'kind', kind}, {...}
  for i = 1, select('#', ...), 2 do
    local value = details[i + 1]
    if type(value) == 'number' then value = text(value) end
    if value and value ~= '' then entry[#entry + 1], entry[#entry + 2] = details[i], value end
  end
  redis.call('XADD', key.journal, 'MAXLEN', '=', constants.RECORDS_KEPT, text(math.max(job.now, 0)) .. '-*',
    unpack(entry))
  redis.call('XTRIM', key.journal, 'MINID', '=', math.max(job.now - constants.RECORDS_KEPT_MS, 0))
  state.changes.is_recorded = true
end

-- Wake the clients that wait for records.
function journal.announce()
  redis.call('PUBLISH', key.wake .. key.name, '')
end

-- Return the first NAMES_KEPT members as a JSON array; nil if there are no members.
function journal.named(members)
  if #members == 0 then return nil end
  local first = {}
  for i = 1, math.min(#members, constants.NAMES_KEPT) do first[i] = members[i] end
  return cjson.encode(first)
end

-- Return an empty summary: the number of members, and the first members. A command in steps stores a summary only.
function journal.summary()
  return {count = 0, first = {}}
end

-- Add members to a summary.
function journal.add(summary, members)
  for _, member in ipairs(members) do
    summary.count = summary.count + 1
    if summary.count <= constants.NAMES_KEPT then summary.first[summary.count] = member end
  end
end

-- Record a change of some substreams of a query, with additional details. members: a list or a summary.
function journal.write_substreams(kind, query, members, ...)
  local count = members.count or #members
  if count == 0 then return end
  journal.write(kind, 'query', query, 'count', count, 'substreams', journal.named(members.first or members), ...)
end

-- Record an operator's command. members: the affected members, or a summary of them.
function journal.write_action(action, query, members, ...)
  local count = members and (members.count or #members) or 0
  journal.write('action', 'action', action, 'query', query, 'actor', args.actor, 'reason', args.reason,
    'count', count > 0 and count or nil, 'substreams', members and journal.named(members.first or members), ...)
end

-- Count one action of a limit.
function journal.count_limit(limit)
  redis.call('HINCRBY', key.job, 'limit ' .. limit, 1)
end

return journal
