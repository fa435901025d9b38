-- Creates a job, or changes the rules of one.
--
-- KEYS  1 the job
-- ARGV  now · expected revision ('' to create: there must be no live job) · fresh epoch · config (JSON)
--       · lag · slide · offset ('' '' without frames) · idle timeout ('' for never)
-- Reply ok, incarnation, epoch, ... (parts/answer), created (1/0), revision
--       or error: job_exists, job_not_found, job_deleted, revision_mismatch <current>
-- @include parts/answer
-- @include parts/observe
local expected, epoch, config = arg(), arg(), arg()
local lag, slide, offset, idle_timeout = arg(), arg(), arg(), arg()

local refused = load_job()
if expected == '' and not refused then return problem('job_exists') end
if expected ~= '' then
  if refused then return refused end
  local current = redis.call('HGET', K.job, 'revision')
  if current ~= expected then return problem('revision_mismatch', current) end
end

local function set_rules()
  redis.call('HSET', K.job, 'config', config, 'lag', lag, 'slide', slide, 'offset', offset,
    'idle_timeout', idle_timeout)
  J.lag, J.slide, J.offset, J.idle_timeout = num(lag), num(slide), num(offset), num(idle_timeout)
  return redis.call('HINCRBY', K.job, 'revision', 1)
end

-- Tops are judged anew by the new lag; watermarks that were reached stand. Done substreams stay as they are.
local function judge_anew(watermarks_key, skip_done)
  local members = redis.call('ZRANGE', watermarks_key, 0, -1)
  if skip_done and #members > 0 then
    local done, kept = zmscore(K.done, members), {}
    for i, member in ipairs(members) do
      if not done[i] then kept[#kept + 1] = member end
    end
    members = kept
  end
  if #members == 0 then return end
  local tops, watermarks = zmscore(K.tops, members), {}
  for i, member in ipairs(members) do
    local top = num(tops[i])
    if top and top - J.lag >= -HIGHEST then
      watermarks[#watermarks + 1], watermarks[#watermarks + 2] = score(top - J.lag), member
    end
  end
  zadd(watermarks_key, 'GT', watermarks)
end

if expected == '' then
  local incarnation = (J.incarnation or 0) + 1
  redis.call('DEL', K.job)
  J = {incarnation = incarnation, epoch = epoch, clock = clock()}
  J.now, J.coalesced_since, J.watermark_since = J.clock, J.clock, J.clock
  redis.call('HSET', K.job, 'state', 'live', 'epoch', epoch, 'created', fmt(J.now))
  local revision = set_rules()
  save_job()
  return answer('1', fmt(revision))
end

local revision = set_rules()
judge_anew(K.live, false)
judge_anew(K.parked, true)
-- Nobody is idle by a timeout that is no longer in force: all come back, and the look decides anew.
for _, query in ipairs(owners()) do
  local quiet = redis.call('ZRANGE', K.quiet(query), 0, -1, 'WITHSCORES')
  local members, expiry = {}, {}
  for i = 1, #quiet, 2 do
    members[#members + 1] = quiet[i]
    expiry[#expiry + 1], expiry[#expiry + 2] = quiet[i + 1], quiet[i]
  end
  if #members > 0 then
    wake(query, members)
    zadd(K.expiry(query), nil, expiry)
  end
  if query ~= '' then expire(query, num(redis.call('HGET', K.query(query), 'idle_clock'))) end
end
look()
save_job()
return answer('0', fmt(revision))
