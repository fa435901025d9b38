-- @include parts/values
-- @include parts/args
-- The job's own hash, read once and written once. Its clock never goes back.
local J = {}

local JOB_FIELDS = {'state', 'incarnation', 'epoch', 'clock', 'coalesced', 'watermark', 'lead', 'coalesced_since',
  'watermark_since', 'complete', 'lag', 'slide', 'offset', 'idle_timeout'}
local JOB_TEXTS = {state = true, epoch = true}
local JOB_KEPT = {'incarnation', 'clock', 'coalesced', 'watermark', 'lead', 'coalesced_since', 'watermark_since',
  'complete'}

-- Returns a problem where there is no live job.
local function load_job()
  local values = redis.call('HMGET', K.job, unpack(JOB_FIELDS))
  for i, field in ipairs(JOB_FIELDS) do
    if JOB_TEXTS[field] then J[field] = values[i] else J[field] = num(values[i]) end
  end
  if not J.state then return problem('job_not_found') end
  if J.state == 'deleted' then return problem('job_deleted') end
  J.now = math.max(clock(), J.clock)
  J.clock = J.now
end

-- Now in the observed time of a query, which does not go back when a loss becomes known later; and what the query has
-- lost in waiting for the coordinator. Reports without batches have no observed time of their own.
local function observed_by(query)
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
  for _, field in ipairs(JOB_KEPT) do
    pairs_[#pairs_ + 1] = field
    pairs_[#pairs_ + 1] = fmt(J[field])
  end
  redis.call('HSET', K.job, unpack(pairs_))
end
