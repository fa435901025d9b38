-- Creates a job, or changes the rules of one.
--
-- KEYS  1 the job · 2 the jobs to sweep · 3 all jobs
-- ARGV  now · absent after · not after · how many jobs there may be ('' : any number) · a prefix · how many jobs with this prefix there may be
--       ('' : any number) · expected revision ('' to create: there must be no live job) · fresh epoch
--       · config (JSON, the document) · rules (JSON, see tidegate.store.rules) · actor · reason
-- Reply ok, ... (parts/answer), created (1/0), revision
--       or error: job_exists, job_not_found, job_deleted, revision_mismatch <current>, too_many_jobs <how many may be>
-- @include parts/answer
-- @include parts/wipe
-- @include parts/end
local most, prefix, quota = num(arg()), arg(), num(arg())
local expected, epoch, config, rules = arg(), arg(), arg(), arg()

local refused = load_job()
if refused and refused[2] == 'clock_jumped' then return refused end
if expected == '' and not refused then return problem('job_exists') end
if expected ~= '' then
  if refused then return refused end
  local current = redis.call('HGET', K.job, 'revision')
  if current ~= expected then return problem('revision_mismatch', current) end
end

local function set_rules()
  redis.call('HSET', K.job, 'config', config, 'rules', rules)
  R = read_rules(rules)
  return redis.call('HINCRBY', K.job, 'revision', 1)
end

if expected == '' then
  local incarnation = (J.incarnation or 0) + 1
  -- Later than all that is on record of the one before, so that nobody takes up its record in this one.
  local deleted = num(redis.call('HGET', K.job, 'deleted'))
  local now = deleted and math.max(clock(), deleted + 1) or clock()
  if not_after and now > not_after then return problem('clock_jumped', fmt(now)) end
  if most and redis.call('SCARD', K.jobs) >= most then return problem('too_many_jobs', fmt(most)) end
  if quota then
    local number = 0
    for _, job in ipairs(redis.call('SMEMBERS', K.jobs)) do
      if string.sub(job, 1, #prefix) == prefix then number = number + 1 end
    end
    if number >= quota then return problem('too_many_jobs', fmt(quota)) end
  end
  redis.call('DEL', K.job)
  redis.call('SADD', K.jobs, K.name)
  LOADED = {}
  fresh_job(incarnation, epoch, now)
  redis.call('HSET', K.job, 'state', 'live', 'created', fmt(J.now))
  local revision = set_rules()
  local why = read_why()
  record('created', 'actor', why[1], 'reason', why[2])
  expect()
  return reply('1', fmt(revision))
end

local before = R
local revision = set_rules()
local why = read_why()
record('config', 'actor', why[1], 'reason', why[2])
expect()

-- Another retention begins a history of its own.
if R.max_retention ~= before.max_retention then J.retention = '' end

-- Nobody watched for the silence of those who say nothing of it themselves: it begins to count now.
if R.idle_timeout and not before.idle_timeout then
  for _, key in ipairs({K.expiry(''), K.quiet('')}) do
    zadd_all(key, fmt(J.t), redis.call('ZRANGE', key, 0, -1))
  end
end

-- Nobody is idle by a timeout that is no longer in force. Those who are idle for another reason stay so.
local function idle_clock_of(query)
  if query == '' then return J.t end
  return num(redis.call('HGET', K.query(query), 'idle_clock'))
end

for _, query in ipairs(owners()) do
  local idle_clock = idle_clock_of(query)
  local silent = R.idle_timeout and idle_clock and idle_clock - R.idle_timeout or -math.huge
  local quiet, woken = redis.call('ZRANGE', K.quiet(query), '(' .. fmt(silent), '+inf', 'BYSCORE'), {}
  local told = zmscore(K.told, quiet)
  for i, member in ipairs(quiet) do
    if not told[i] then woken[#woken + 1] = member end
  end
  local after = R
  R = before  -- what is known of them is kept as their policy before has it
  if #woken > 0 then wake(query, woken, true) end
  R = after
end

-- Substreams under another policy than before are judged anew by their tops; what they had reached stands.
local function differs(a, b)
  return a.type ~= b.type or a.lag ~= b.lag or a.max_delay ~= b.max_delay or a.max_lull ~= b.max_lull
    or a.wall_clock_lag ~= b.wall_clock_lag or a.late_share ~= b.late_share or a.cold_start ~= b.cold_start
    or a.floor ~= b.floor or a.ceiling ~= b.ceiling or a.enough ~= b.enough
end

local function change_policy(member, live)
  local old, new = policy_by(before, member), policy_of(member)
  local top = num(redis.call('ZSCORE', K.tops, member))
  if not differs(old, new) then
    -- One that was idle under another lag, and is so no more, has not been judged by this one yet.
    local lag = flat_lag(new, member)
    if live and lag and top then redis.call('ZADD', K.live, 'GT', score(minus(top, lag)), member) end
    return
  end
  if not is_target(new) then redis.call('HDEL', K.lags, member) end
  local watermark, s = num(redis.call('ZSCORE', live and K.live or K.parked, member)), nil
  if old.limit then
    s = state_of(redis.call('HGET', K.clocked, member), old)
    if live then
      reckon(s, old, top)
      watermark = s.a
      displace({member})
    end
    redis.call('HDEL', K.clocked, member)
  end
  if not new.limit then
    if live then
      local lag = flat_lag(new, member)
      if lag and top then watermark = higher(watermark, minus(top, lag)) end
      redis.call('ZADD', K.live, score(watermark), member)
    end
    return
  end
  local history_before = s and s.history
  s = new_state(new, watermark)
  if history_before and history_before.length == new.max_delay then s.history = history_before end
  if live then redis.call('ZREM', K.live, member) end
  local lagged = top and see(s, new, top, top)
  if live then
    place(member, s, new)
    redis.call('ZADD', K.lagged(new.limit), score(lagged), member)
  else
    redis.call('HSET', K.clocked, member, state_text(s))
  end
end

for _, query in ipairs(owners()) do
  for _, member in ipairs(redis.call('ZRANGE', K.expiry(query), 0, -1)) do change_policy(member, true) end
  for _, member in ipairs(redis.call('ZRANGE', K.quiet(query), 0, -1)) do change_policy(member, false) end
end
if not J.complete then time_out_queries() end
for _, query in ipairs(owners()) do expire(query, idle_clock_of(query)) end
J.literal = 1
look()
return reply('0', fmt(revision))
