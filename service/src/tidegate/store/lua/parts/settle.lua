-- @include parts/observe
-- @include parts/delays
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

-- Members and what is kept of them in a hash '<partition> <member>' -> that.
local function counted(key)
  local found, members, rows = redis.call('HGETALL', key), {}, {}
  for i = 1, #found, 2 do
    members[#members + 1] = string.sub(found[i], string.find(found[i], ' ', 1, true) + 1)
    rows[#rows + 1] = found[i + 1]
  end
  return members, rows
end

local function settle()
  local members, tops, marks = staged_entries()
  local delayed, delays = counted(K.staged_delays(Q.name))
  if #delayed > 0 then measure(Q.name, delayed, delays, num(redis.call('HGET', K.query(Q.name), 'merged'))) end
  observe(Q.name, members, tops, marks, (observed_by(Q.name)))
  if Q.taken_in then observe_until(Q.taken_in) end
  Q.open = false
  count_rows('reported', counted(K.staged_rows(Q.name)))
  count_future(counted(K.staged_future(Q.name)))
  unstage(Q.name)
  redis.call('ZREM', K.open, Q.name)
  redis.call('ZREM', K.begun, Q.name)
  redis.call('HSET', K.query(Q.name), 'open', '0')
  return expire(Q.name, Q.idle_clock)
end
