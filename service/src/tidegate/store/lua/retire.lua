-- Ends a query: its open batch is given up, its substreams are evicted, or handed over to a successor. A query that is
-- its own successor keeps its substreams and may begin on another checkpoint.
--
-- KEYS  1 the job · 2 the jobs to sweep
-- ARGV  now · absent after · not after · query · successor ('' : evict) · actor · reason
-- Reply ok, ... (parts/answer), applied (0: it was retired before)
--       or error: job_not_found, job_deleted, query_not_found <query>
-- @include parts/answer
-- @include parts/settle
-- @include parts/end
local query, successor = arg(), arg()
local refused = load_job()
if refused then return refused end
load_query(query)
local mine = members_of(query)
local missing = redis.call('SISMEMBER', K.missing, query) == 1
if not Q.known and #mine == 0 and not missing then return problem('query_not_found', query) end
if Q.retired and #mine == 0 and not missing then return reply('0') end

if successor == query then
  local applied = Q.open
  if applied then
    give_up()
    act('retire', read_why(), query, nil, 'successor', successor)
  end
  look(nil, false, true)
  return reply(applied and '1' or '0')
end

-- A substream keeps its state under another query's name.
local function hand_over(members)
  local names = {}
  for i, member in ipairs(members) do names[i] = successor .. '/' .. name_of(member) end
  local taken = zmscore(K.tops, names)
  -- The successor has not read that input before: silence begins to count now.
  local now = fmt((observed_by(successor)))
  local function move(key, to_key, from, to, value)
    local present = redis.call('ZSCORE', key, from)
    if not present then return end
    redis.call('ZREM', key, from)
    redis.call('ZADD', to_key, value or present, to)
  end
  for i, from in ipairs(members) do
    local to = names[i]
    if not taken[i] then
      redis.call('SADD', K.owners, successor)
      end_placeholder(successor)
      local keys = {K.tops, K.live, K.parked, K.told, K.since, K.still, K.drift, K.due}
      for _, limit in pairs(CLOCK_LIMITS) do keys[#keys + 1] = K.lagged(limit) end
      for _, key in ipairs(keys) do move(key, key, from, to) end
      move(K.done, K.done, from, to, now)
      move(K.expiry(query), K.expiry(successor), from, to, now)
      move(K.quiet(query), K.quiet(successor), from, to, now)
      local text = redis.call('HGET', K.clocked, from)
      if text then redis.call('HSET', K.clocked, to, text) end
      redis.call('HDEL', K.clocked, from)
      for _, key in ipairs({K.delays, K.lags}) do
        local kept = redis.call('HGET', key, from)
        if kept then redis.call('HSET', key, to, kept) end
      end
      for _, class in ipairs(COUNTED) do
        local rows = redis.call('HGET', K.counts, class .. ' ' .. from)
        if rows then add(K.counts, class .. ' ' .. to, rows) end
        redis.call('HDEL', K.counts, class .. ' ' .. from)
      end
    end
  end
end

if not Q.known then  -- it was expected, or declared for; it stays retired if it never comes
  redis.call('ZADD', K.queries, 'NX', fmt(J.now), query)
  redis.call('SADD', K.owners, query)
  redis.call('HSET', K.query(query), 'query_id', '', 'run_id', '', 'last_contact', fmt(J.now))
end
give_up()
redis.call('ZREM', K.contact, query)
if successor ~= '' then hand_over(mine) end
end_placeholder(query)
forget(query, mine)
act('retire', read_why(), query, mine, 'successor', successor)
look(nil, false, true)
return reply('1')
