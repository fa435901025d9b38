-- @include parts/observe
-- The ends of substreams: done for good, or forgotten.
local COUNTED = {'reported', 'future_rows', 'on_time', 'updated', 'late', 'null_event_time', 'future', 'diverted'}

-- Which of the members are known; and a problem where some are not.
local function check_known(query, members)
  local tops, unknown = zmscore(K.tops, members), {}
  for i, member in ipairs(members) do
    if not tops[i] then unknown[#unknown + 1] = member end
  end
  if #unknown > 0 then return problem('substream_not_found', query, unknown) end
end

-- Marks substreams of a query as done: parked for good, whether live or idle. Returns those that were not done yet.
local function mark_done(query, members)
  local expiry, quiet = zmscore(K.expiry(query), members), zmscore(K.quiet(query), members)
  local done, new, live = {}, {}, {}
  for i, member in ipairs(members) do
    local last_event = expiry[i] or quiet[i]
    if last_event then
      new[#new + 1] = member
      done[#done + 1], done[#done + 2] = last_event, member
      if expiry[i] then live[#live + 1] = member end
    end
  end
  if #new == 0 then return new end
  park(live)
  zadd(K.done, nil, done)
  zadd_all(K.since, fmt(J.now), new)
  zrem(K.expiry(query), new)
  zrem(K.quiet(query), new)
  zrem(K.told, new)
  hdel(K.clocked, new)
  return new
end

-- Forgets members of a query that are known, whatever they are.
local function forget(query, members)
  if #members == 0 then return end
  for _, key in ipairs({K.tops, K.live, K.parked, K.done, K.told, K.since, K.expiry(query), K.quiet(query)}) do
    zrem(key, members)
  end
  displace(members)
  for _, key in ipairs({K.clocked, K.delays, K.lags}) do hdel(key, members) end
  for _, class in ipairs(COUNTED) do
    local fields = {}
    for i, member in ipairs(members) do fields[i] = class .. ' ' .. member end
    hdel(K.counts, fields)
  end
end

-- All members of a query, done ones too; not what stands for it while it is missing.
local function members_of(query)
  local members = {}
  local prefix = query .. '/'
  for _, key in ipairs({K.expiry(query), K.quiet(query)}) do
    for _, member in ipairs(redis.call('ZRANGE', key, 0, -1)) do
      if member ~= prefix then members[#members + 1] = member end
    end
  end
  for _, member in ipairs(redis.call('ZRANGE', K.done, 0, -1)) do
    if string.sub(member, 1, #prefix) == prefix then members[#members + 1] = member end
  end
  return members
end

-- They were named by somebody: the command's last two arguments are who, and why.
local function read_why()
  return {ARGV[#ARGV - 1], ARGV[#ARGV]}
end
