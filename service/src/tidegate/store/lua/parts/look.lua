-- @include parts/watermark
-- @include parts/frame
-- @include parts/bulk
-- The look: who is idle, what the live ones merge to, what the throttle lets out.

-- Parks up to `limit` of the substreams of a query whose last event is at or before a processing time; returns how many
-- there were.
local function fall_idle(query, upto, limit)
  local found = redis.call('ZRANGE', K.expiry(query), '-inf', fmt(upto), 'BYSCORE', 'LIMIT', 0, limit, 'WITHSCORES')
  if #found == 0 then return 0 end
  local members, quiet = {}, {}
  for i = 1, #found, 2 do
    members[#members + 1] = found[i]
    quiet[#quiet + 1] = found[i + 1]
    quiet[#quiet + 1] = found[i]
  end
  local watermarks, parked = zmscore(K.live, members), {}
  for i, member in ipairs(members) do
    parked[#parked + 1] = watermarks[i]
    parked[#parked + 1] = member
  end
  zadd(K.parked, nil, parked)
  zadd(K.quiet(query), nil, quiet)
  zrem(K.live, members)
  zrem(K.expiry(query), members)
  redis.call('HINCRBY', K.job, 'idles', #members)
  return #members
end

-- All that the clock of a query has brought about.
local function expire(query, idle_clock)
  if not J.idle_timeout or not idle_clock then return end
  while fall_idle(query, idle_clock - J.idle_timeout, CHUNK) == CHUNK do end
end

local function look()
  if J.complete then return end
  expire('', J.now)
  local _, highest = highest_of(K.live)
  if above(highest, J.lead) then J.lead = highest end
  local live, merged = lowest_of(K.live)
  if not live then merged = J.lead end
  if merged and J.slide then merged = frame_floor(merged) end
  advance(merged)
  release()
end
