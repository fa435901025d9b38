-- @include parts/observe
-- @include parts/run
-- The commit of the loaded query's open batch: what it staged takes effect, and its query's idle clock moves to where
-- all that was there has been taken in, if that is known. A look must follow: returns what it needs to know of those
-- that fell idle.
local function staged_entries()
  local members, tops, marks, at, marked = {}, {}, {}, {}, false
  for _, kind in ipairs({{K.staged(Q.name), tops}, {K.staged_watermarks(Q.name), marks}}) do
    local found = redis.call('ZRANGE', kind[1], 0, -1, 'WITHSCORES')
    marked = #found > 0  -- of the last kind, in the end
    for i = 1, #found, 2 do
      local member = found[i]
      if not at[member] then
        at[member] = #members + 1
        members[at[member]], tops[at[member]], marks[at[member]] = member, '', ''
      end
      kind[2][at[member]] = fmt(tonumber(found[i + 1]))
    end
  end
  return members, tops, marked and marks or {}
end

local function member_of(field)
  return string.sub(field, string.find(field, ' ', 1, true) + 1)
end

local function settle()
  local members, tops, marks = staged_entries()
  observe(Q.name, members, tops, marks, (observed_by(Q.name)))
  if Q.taken_in then observe_until(Q.taken_in) end
  Q.open = false
  local rows = redis.call('HGETALL', K.staged_rows(Q.name))
  for i = 1, #rows, 2 do add(K.counts, 'reported ' .. member_of(rows[i]), rows[i + 1]) end
  local future = redis.call('HGETALL', K.staged_future(Q.name))
  for i = 1, #future, 2 do count_future({member_of(future[i])}, {future[i + 1]}) end
  unstage(Q.name)
  redis.call('ZREM', K.open, Q.name)
  redis.call('ZREM', K.begun, Q.name)
  redis.call('HSET', K.query(Q.name), 'open', '0')
  return expire(Q.name, Q.idle_clock)
end
