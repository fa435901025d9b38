-- @include parts/job
-- What the machine did: see tidegate.domain.journal. Details that are nil or empty are left out.
local RECORDED = false

local function record(kind, ...)
  local entry, details = {'kind', kind}, {...}
  for i = 1, select('#', ...), 2 do
    local value = details[i + 1]
    if value and value ~= '' then entry[#entry + 1], entry[#entry + 2] = details[i], value end
  end
  redis.call('XADD', K.log, 'MAXLEN', '=', fmt(K.records_kept), fmt(math.max(J.now, 0)) .. '-*',
    unpack(entry))
  redis.call('XTRIM', K.log, 'MINID', '=', fmt(math.max(J.now - K.records_kept_ms, 0)))
  RECORDED = true
end

-- Tells those who wait that there is something new in the record.
local function announce()
  redis.call('PUBLISH', K.wake .. K.name, '')
end

-- The first of a list of members, as a record names them.
local function named(members)
  if #members == 0 then return nil end
  local first = {}
  for i = 1, math.min(#members, K.names_kept) do first[i] = members[i] end
  return cjson.encode(first)
end

local function limit_acts(limit)
  redis.call('HINCRBY', K.job, 'limit ' .. limit, 1)
end

-- An action of somebody: `why` is {actor, reason}.
local function act(action, why, query, members, ...)
  local count = members and #members > 0 and fmt(#members) or nil
  record('action', 'action', action, 'query', query, 'actor', why[1], 'reason', why[2], 'count', count, 'substreams',
    members and named(members), ...)
end
