-- Takes over watermarks from elsewhere, for substreams that are known. None of them moves back. If the lowest of all is
-- then ahead of C, C moves there, past the throttle.
--
-- KEYS  1 the job · 2 the jobs to sweep
-- ARGV  now · absent after · not after · query ('' for reports without batches) · members, watermarks (columns)
--       · actor · reason
-- Reply ok, ... (parts/answer), applied (0: all were that far already)
--       or error: job_not_found, job_deleted, job_complete, substream_not_found <query> <members>
-- @include parts/answer
-- @include parts/end
local query, members, watermarks = arg(), column(), column()
local refused = load_job()
if refused then return refused end
refused = J.complete and problem('job_complete') or check_known(query, members)
if refused then return refused end

local LEVELS = {}  -- what each clocked live substream has reached

local function reckon_all()
  local live = live_clocked()
  local tops, texts = zmscore(K.tops, live), hmget(K.clocked, live)
  for i, member in ipairs(live) do
    local policy = policy_of(member)
    local s = state_of(texts[i], policy)
    reckon(s, policy, num(tops[i]))
    LEVELS[member] = {s = s, policy = policy}
  end
end

reckon_all()
local live, parked, new = zmscore(K.live, members), zmscore(K.parked, members), {}
for i, member in ipairs(members) do
  local level, watermark = LEVELS[member], tonumber(watermarks[i])
  local own
  if level then own = level.s.a else own = num(live[i] or parked[i]) end
  if above(watermark, own) then
    new[#new + 1] = member
    if level then
      level.s.a = watermark
    else
      redis.call('ZADD', live[i] and K.live or K.parked, score(watermark), member)
      local policy, text = policy_of(member), redis.call('HGET', K.clocked, member)
      if text then
        local s = state_of(text, policy)
        s.a = watermark
        redis.call('HSET', K.clocked, member, state_text(s))
      end
    end
  end
end
if #new == 0 then return reply('0') end
local lowest = math.huge
for member, level in pairs(LEVELS) do
  place(member, level.s, level.policy)
  lowest = math.min(lowest, level.s.a or -math.huge)
end
J.literal, J.more = 1, 1
for _, key in ipairs({K.live, K.parked}) do
  local first, watermark = lowest_of(key)
  if first then lowest = math.min(lowest, watermark or -math.huge) end
end
act('restore', read_why(), query, new)
local _, hold = lowest_hold()
if hold then lowest = math.min(lowest, hold) end
if lowest > -math.huge then advance(lowest) end
release()
return reply('1')
