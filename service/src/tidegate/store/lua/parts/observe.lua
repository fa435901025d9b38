-- @include parts/look
-- What highest event times do to the substreams they were seen in (policy: limiting_lag).

-- Moves idle substreams among `members` back to the live ones, with the watermarks they had.
local function wake(query, members)
  if redis.call('EXISTS', K.quiet(query)) == 0 then return end
  local quiet, woken = zmscore(K.quiet(query), members), {}
  for i, member in ipairs(members) do
    if quiet[i] then woken[#woken + 1] = member end
  end
  if #woken == 0 then return end
  local watermarks, live = zmscore(K.parked, woken), {}
  for i, member in ipairs(woken) do
    live[#live + 1] = watermarks[i]
    live[#live + 1] = member
  end
  zadd(K.live, nil, live)
  zrem(K.parked, woken)
  zrem(K.quiet(query), woken)
end

-- Leaves out the members that are done: nothing moves them any more.
local function without_done(members, tops)
  if redis.call('EXISTS', K.done) == 0 then return members, tops end
  local done, kept, kept_tops = zmscore(K.done, members), {}, {}
  for i, member in ipairs(members) do
    if not done[i] then
      kept[#kept + 1] = member
      kept_tops[#kept_tops + 1] = tops[i]
    end
  end
  return kept, kept_tops
end

-- `observed`: now, in the observed time of the query.
local function observe(query, members, tops, observed)
  members, tops = without_done(members, tops)
  if #members == 0 then return end
  wake(query, members)
  local seen, watermarks, expiry = {}, {}, {}
  for i, member in ipairs(members) do
    local watermark = tonumber(tops[i]) - J.lag
    if watermark < -HIGHEST then watermark = nil end
    seen[#seen + 1], seen[#seen + 2] = tops[i], member
    watermarks[#watermarks + 1], watermarks[#watermarks + 2] = score(watermark), member
    expiry[#expiry + 1], expiry[#expiry + 2] = fmt(observed), member
  end
  zadd(K.tops, 'GT', seen)
  zadd(K.live, 'GT', watermarks)
  zadd(K.expiry(query), nil, expiry)
end
