-- @include parts/values
-- @include parts/args
-- The job's own hash, read once and written once; its rules R. Its clock never goes back.
--
-- J.now is processing time by the clock. J.t is the job's observed time: J.now without J.lost, the time in which nobody
-- looked after it. All limits and all sorted sets of times are in J.t.
local J, R, LOADED = {}, {}, {}

local NUMBERS = {'incarnation', 'clock', 'lost', 'coalesced', 'watermark', 'lead', 'top', 'coalesced_since', 'watermark_since',
  'complete', 'completed', 'all_idle', 'look', 'look_lost', 'looks', 'least', 'literal', 'due', 'next_change', 'more',
  'emissions', 'throttled', 'offered', 'heard', 'wait_weight'}
local TEXTS = {'epoch', 'retention', 'stairs', 'gaps', 'waited'}
local FIELDS = {'state', 'rules', unpack(NUMBERS)}
for _, field in ipairs(TEXTS) do FIELDS[#FIELDS + 1] = field end

local CLOCK_LIMITS = {limiting_lag_and_delay = 'max_delay_ms', limiting_lag_and_lull = 'max_lull_ms',
  limiting_timestamp_and_wall_clock_lag = 'wall_clock_lag_ms'}

-- Rules as they are kept: see tidegate.store.rules.
local function read_rules(text)
  local rules = cjson.decode(text)
  rules.delay_half_life = rules.delay_half_life or K.learning.DELAY_HALF_LIFE_MS
  for _, policy in ipairs(rules.policies) do
    policy.limit = CLOCK_LIMITS[policy.type]
    if policy.limit then rules.clocked = true end
  end
  return rules
end

local function set_now(now)
  local gap = now - J.clock
  -- A job that waits for time is looked at now and then: a longer gap shows that nobody could.
  if absent_after and gap > absent_after and J.next_change then J.lost, J.absent = J.lost + gap, gap end
  J.now = math.max(now, J.clock)
  J.clock, J.t = J.now, J.now - J.lost
end

-- Returns a problem where there is no live job, or no time that can be true.
local function load_job()
  local values = redis.call('HMGET', K.job, unpack(FIELDS))
  if not values[1] then return problem('job_not_found') end
  for i, field in ipairs(FIELDS) do LOADED[field] = values[i] or '' end
  for _, field in ipairs(NUMBERS) do J[field] = tonumber(LOADED[field]) end
  for _, field in ipairs(TEXTS) do J[field] = LOADED[field] end
  if LOADED.state == 'deleted' then return problem('job_deleted') end
  R = read_rules(LOADED.rules)
  J.coalesced_before, J.watermark_before = J.coalesced, J.watermark
  local now = clock()
  if not_after and now > not_after then return problem('clock_jumped', fmt(now)) end
  set_now(now)
end

-- Now in the observed time of a query, which does not go back when a loss becomes known later; and what the query has
-- lost in waiting for the coordinator. For reports without batches that is the job's.
local function observed_by(query)
  if query == '' then return J.t, J.lost end
  local fields = redis.call('HMGET', K.query(query), 'lost', 'idle_clock')
  local lost = num(fields[1]) or 0
  return math.max(J.now - lost, num(fields[2]) or -math.huge), lost
end

-- The queries that have keys of their own, '' (reports without batches) first. Not unpacked: there may be many.
local function owners()
  local names = redis.call('SMEMBERS', K.owners)
  table.insert(names, 1, '')
  return names
end

local function save_job()
  local pairs_ = {}
  for _, field in ipairs(NUMBERS) do
    local text = fmt(J[field])
    if text ~= LOADED[field] then pairs_[#pairs_ + 1], pairs_[#pairs_ + 2] = field, text end
  end
  for _, field in ipairs(TEXTS) do
    if J[field] ~= LOADED[field] then pairs_[#pairs_ + 1], pairs_[#pairs_ + 2] = field, J[field] or '' end
  end
  if #pairs_ > 0 then redis.call('HSET', K.job, unpack(pairs_)) end
end
