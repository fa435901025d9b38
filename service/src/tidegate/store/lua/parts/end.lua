-- @include parts/look
-- Marks substreams of a query as done: parked for good, whether live or idle. Returns whether any was not done yet.
local function mark_done(query, members)
  local live = zmscore(K.live, members)
  local expiry, quiet = zmscore(K.expiry(query), members), zmscore(K.quiet(query), members)
  local done, parked, new = {}, {}, {}
  for i, member in ipairs(members) do
    local last_event = expiry[i] or quiet[i]
    if last_event then
      new[#new + 1] = member
      done[#done + 1], done[#done + 2] = last_event, member
      if live[i] then parked[#parked + 1], parked[#parked + 2] = live[i], member end
    end
  end
  if #new == 0 then return false end
  zadd(K.done, nil, done)
  zadd(K.parked, nil, parked)
  zrem(K.live, new)
  zrem(K.expiry(query), new)
  zrem(K.quiet(query), new)
  return true
end
