-- @include parts/observe
-- @include parts/run
-- The commit of the loaded query's open batch: what it staged takes effect, and its query's idle clock moves to its
-- begin, for everything that was there by then has been taken in.
local function settle()
  local staged = redis.call('ZRANGE', K.staged(Q.name), 0, -1, 'WITHSCORES')
  local members, tops = {}, {}
  for i = 1, #staged, 2 do
    members[#members + 1] = staged[i]
    tops[#tops + 1] = fmt(tonumber(staged[i + 1]))
  end
  observe(Q.name, members, tops, (observed_by(Q.name)))
  observe_until(Q.begun)
  Q.open = false
  local rows = redis.call('HGETALL', K.staged_rows(Q.name))
  for i = 1, #rows, 2 do
    local member = string.sub(rows[i], string.find(rows[i], ' ', 1, true) + 1)
    add(K.counts, 'reported ' .. member, rows[i + 1])
  end
  unstage(Q.name)
  redis.call('ZREM', K.open, Q.name)
  redis.call('HSET', K.query(Q.name), 'open', '0')
  expire(Q.name, Q.idle_clock)
  look()
end
