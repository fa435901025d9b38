-- @include observe
-- The life of a job: create, configure, reset and delete.
local number, text, score, highest, minus = values.number, values.text, values.score, values.highest, values.minus
local job, config = state.job, state.config

-- Refuse a command for another version of the configuration. An absent field of the version stands for any value.
local function check_version(version)
  if (version.state_epoch or job.state_epoch) ~= job.state_epoch
    or (version.revision or job.revision) ~= job.revision then
    values.refuse('revision_mismatch', {revision = job.revision})
  end
end

-- Return the queries with per-query keys, '' (reports without batches) first. The list may be too long for unpack.
local function query_names()
  local names = redis.call('SMEMBERS', key.query_names)
  table.sort(names, values.sorts_before)
  table.insert(names, 1, '')
  return names
end

-- Add a placeholder for each expected query without substreams, and remove all other placeholders. has_done: the queries
-- with done substreams, as names of true fields.
local function expect_queries(has_done)
  local expected = {}
  for _, query in ipairs(config.expected_queries) do expected[query] = true end
  for _, query in ipairs(redis.call('SMEMBERS', key.missing_queries)) do
    if not expected[query] then
      observation.remove_placeholder(query)
      if not queries.get(query).run_id then redis.call('ZREM', key.last_seen, query) end
    end
  end
  for _, query in ipairs(config.expected_queries) do
    local is_known = has_done[query] or redis.call('EXISTS', key.last_events(query), key.idle(query)) > 0
    if not is_known and not queries.get(query).retired then
      local placeholder = query .. '/'
      redis.call('SADD', key.missing_queries, query)
      redis.call('SADD', key.query_names, query)
      redis.call('ZADD', key.active, '-inf', placeholder)
      redis.call('ZADD', key.last_events(query), (queries.observed_time(query)), placeholder)
      redis.call('ZADD', key.last_seen, 'NX', job.observed_now, query)
    end
    emission.place_unwritten(queries.get(query))
  end
  for _, query in ipairs(redis.call('ZRANGE', key.unwritten, 0, -1)) do  -- perhaps no longer expected
    emission.place_unwritten(queries.get(query))
  end
end

-- Configure: create a job, or change its configuration. A change runs in steps (see steps.lua).
-- args   version (see check_version; absent: create a job), state_epoch, config (JSON text, as the client sent it),
--        compiled_config (JSON text), max_jobs, quota (prefix, jobs), actor, reason; on a Redis Cluster also
--        jobs_elsewhere and in_quota_elsewhere, the numbers of jobs in other buckets
-- reply  created, revision
-- errors job_exists, job_not_found, job_deleted, revision_mismatch, too_many_jobs

local function write_config()
  redis.call('HSET', key.job, 'config', args.config, 'compiled_config', args.compiled_config)
  state.configure(args.compiled_config)
  job.revision = (job.revision or 0) + 1
end

-- Refuse a new job if the limit on all jobs, or on jobs with the caller's prefix, is reached.
local function check_quota()
  if args.max_jobs and redis.call('SCARD', key.jobs) + (args.jobs_elsewhere or 0) >= args.max_jobs then
    values.refuse('too_many_jobs', {limit = args.max_jobs})
  end
  if not args.quota then return end
  local count = args.in_quota_elsewhere or 0
  for _, name in ipairs(redis.call('SMEMBERS', key.jobs)) do
    if string.sub(name, 1, #args.quota.prefix) == args.quota.prefix then count = count + 1 end
  end
  if count >= args.quota.jobs then values.refuse('too_many_jobs', {limit = args.quota.jobs}) end
end

local function create()
  local highest_deleted = number(redis.call('GET', key.incarnation)) or 0
  local incarnation, now = (job.incarnation or highest_deleted) + 1, clock.now()
  -- Start after the records of the previous incarnation, so that no client continues from an old record.
  local deleted = number(redis.call('HGET', key.job, 'deleted'))
  if deleted then now = math.max(now, deleted + 1) end
  check_quota()
  redis.call('UNLINK', key.job, key.consumers)  -- a previous version that deletes a job keeps its consumers
  redis.call('HSET', key.job, 'schema', constants.SCHEMA)
  redis.call('SADD', key.jobs, key.name)
  redis.call('ZREM', key.deleted, key.name)
  state.start(incarnation, args.state_epoch, now)
  job.outages = clock.attend(now)
  reply.remember()
  redis.call('HSET', key.job, 'state', 'live', 'created', job.now)
  write_config()
  frames.declare()
  history.write('created', 'actor', args.actor, 'reason', args.reason)
  expect_queries({})
  return reply.finish({created = true, revision = job.revision})
end

local function idle_clock_of(query)
  if query == '' then return job.observed_now end
  return queries.get(query).idle_clock
end

-- Remove a substream from its policy. Return its watermark, and the history that it may keep.
local function leave(old, member, is_active, max_event_time)
  local watermark = number(redis.call('ZSCORE', is_active and key.active or key.frozen, member))
  if not old.follows_clock then return watermark, nil end
  local s = follower.read(redis.call('HGET', key.clock_driven, member))
  if is_active or followers.idle_ones({member})[1] then
    follower.materialize(s, old, max_event_time)
    watermark = s.own
    followers.remove({member})
  end
  redis.call('HDEL', key.clock_driven, member)
  return watermark, s.history
end

local function enter_follower(new, member, is_active, max_event_time, watermark, history_before)
  local s = follower.start(new, watermark)
  if history_before and history_before.length == new.max_delay_ms then s.history = history_before end
  if is_active then redis.call('ZREM', key.active, member) end
  local lagged = max_event_time and follower.observe(s, new, max_event_time, max_event_time)
  if is_active then
    followers.place(member, s, new)
    redis.call('ZADD', key.lagged(new.limit), score(lagged or nil), member)
    job.lowest_clock_driven = math.min(job.lowest_clock_driven, watermark or -math.huge)
  elseif config.freezes_idle then
    follower.write(member, s)
  else
    redis.call('ZREM', key.frozen, member)
    followers.place(member, s, new, true)
    redis.call('ZADD', key.idle_lagged, score(lagged or nil), member)
  end
end

-- Compute the watermark of a substream from its max event time under the new policy. The watermark does not go back.
local function change_policy(policies_before, member, is_active)
  local old, new = policy.among(policies_before, member), policy.of(member)
  local event_times = max_event_times.of({member}, policies_before)
  local max_event_time = event_times[1] or nil
  local flat_lag = max_event_time and policy.flat_lag(new, member)
  if not policy.differs(old, new) then
    -- A substream that was idle under another lag has not been evaluated under the new lag yet. It has an entry.
    if is_active and flat_lag and redis.call('ZSCORE', key.max_event_times, member) then
      redis.call('ZADD', key.active, 'GT', score(minus(max_event_time, flat_lag)), member)
      max_event_times.store({member}, event_times)
    end
    return
  end
  if not policy.is_target(new) then redis.call('HDEL', key.learned_lags, member) end
  local watermark, history_before = leave(old, member, is_active, max_event_time)
  if new.follows_clock then
    enter_follower(new, member, is_active, max_event_time, watermark, history_before)
  elseif is_active then
    if flat_lag then watermark = highest(watermark, minus(max_event_time, flat_lag)) end
    redis.call('ZADD', key.active, score(watermark), member)
  else
    redis.call('ZADD', key.frozen, score(watermark), member)
  end
  max_event_times.store({member}, event_times)
end

-- The phases of a change

local function change(progress)
  reply.load()
  check_version(args.version)
  progress.before, progress.has_done = redis.call('HGET', key.job, 'compiled_config'), {}
  local before = state.decoded(progress.before)
  frames.flush(args.compiled_config)
  write_config()
  history.write('config', 'actor', args.actor, 'reason', args.reason)
  frames.declare(before)
  limits.start_learning(before)
  if config.max_retention_ms ~= before.max_retention_ms then job.retention = nil end
  progress.starts_silence = config.idle_timeout_ms and not before.idle_timeout_ms
  progress.queries = query_names()
end

local function expect_in_steps(progress)
  local remain = steps.each(progress, {key.done}, function(members)
    for _, member in ipairs(members) do progress.has_done[policy.query_of(member)] = true end
  end)
  if not remain then expect_queries(progress.has_done) end
  return remain
end

-- The silence of reports without batches was not measured before, so it starts now.
local function start_silence(progress)
  if not progress.starts_silence then return end
  local names, sets = {key.last_events(''), key.idle('')}, {}
  for i, name in ipairs(names) do sets[i] = {name, '-inf', '(' .. text(job.observed_now)} end
  return steps.each(progress, sets, function(members, i)
    bulk.zadd_all(names[i], job.observed_now, members)
    return #members
  end)
end

-- Make idle substreams active that are not silent under the new configuration.
local function undo_idle(progress)
  local sets = {}
  for i, query in ipairs(progress.queries) do
    local idle_clock = idle_clock_of(query)
    local silent = config.idle_timeout_ms and idle_clock and text(idle_clock - config.idle_timeout_ms) or '-inf'
    sets[i] = {key.idle(query), '(' .. silent, '+inf'}
  end
  -- The stored states belong to the previous policies.
  local before, policies, has_followers = state.decoded(progress.before), config.policies, config.has_followers
  state.forget_config()
  config.policies, config.has_followers = before.policies, before.has_followers
  local remain = steps.each(progress, sets, function(members, i)
    local _, active = bulk.split_by_set(key.forced_idle, members)
    return #idleness.activate(progress.queries[i], active, false)
  end)
  config.policies, config.has_followers = policies, has_followers
  return remain
end

local function change_policies(progress)
  local before, sets = state.decoded(progress.before), {}
  for _, query in ipairs(progress.queries) do
    sets[#sets + 1], sets[#sets + 2] = key.last_events(query), key.idle(query)
  end
  return steps.each(progress, sets, function(members, i)
    for _, member in ipairs(members) do change_policy(before.policies, member, i % 2 == 1) end
  end)
end

local function end_change(progress)
  if not job.is_complete then idleness.time_out_queries() end
  for _, query in ipairs(progress.queries) do idleness.time_out_substreams(query, idle_clock_of(query)) end
  job.evaluate_each = 1
  evaluate.evaluate()
  return reply.finish({created = false, revision = job.revision})
end

function commands.configure()
  if args.version then
    return steps.run({change, expect_in_steps, start_silence, undo_idle, change_policies, end_change})
  end
  if state.read() == 'live' then values.refuse('job_exists') end
  return create()
end

-- Remove all keys of a job, except its hash, its history, its timeline and its consumers.
local function remove_all()
  for _, hour in ipairs(redis.call('ZRANGE', key.hours, 0, -1)) do
    redis.call('UNLINK', key.hour_rows(hour), key.hour_late(hour))
  end
  for _, query in ipairs(query_names()) do
    for _, name in ipairs(key.of_query) do redis.call('UNLINK', key[name](query)) end
  end
  queries.forget()
  for _, limit in ipairs(constants.POLICY_LIMITS) do redis.call('UNLINK', key.lagged(limit)) end
  for _, name in ipairs(key.of_job) do redis.call('UNLINK', key[name]) end
end

-- Reset: start a new incarnation under the same configuration, without a watermark. The history, the timeline and
-- the consumers of the frames stay.
-- args   state_epoch, actor, reason
function commands.reset()
  state.changes.is_step = true  -- also during another command's steps, whose remaining steps are then lost
  reply.load()
  remove_all()
  redis.call('HDEL', key.job, 'steps_argument', 'steps_reply')
  local frames_before, up_to = job.frames, values.highest(job.max_event_time, job.max_watermark)
  state.start(job.incarnation + 1, args.state_epoch, job.now)
  frames.reset(frames_before, up_to)
  limits.start_learning()
  reply.remember()
  history.write_action('reset')
  expect_queries({})
  return reply.finish()
end

-- Delete: delete a job and its data. A tombstone stays for some time, so that reports are refused. The highest incarnation
-- of all deleted jobs stays, so that a create starts a new incarnation.
-- args   version (see check_version), tombstones (number of tombstones that stay)
-- errors job_not_found, revision_mismatch; a repeated delete succeeds

-- Let the tombstone of a job expire. Keep the number of tombstones.
local function expire_tombstone(deleted, kept)
  local highest = tonumber(redis.call('GET', key.incarnation)) or 0
  redis.call('SET', key.incarnation, math.max(job.incarnation, highest))
  redis.call('PEXPIRE', key.job, constants.TOMBSTONE_KEPT_MS, 'NX')
  redis.call('ZADD', key.deleted, deleted, key.name)
  local expired = deleted - constants.TOMBSTONE_KEPT_MS
  for _, name in ipairs(redis.call('ZRANGE', key.deleted, '-inf', expired, 'BYSCORE', 'LIMIT', 0, 100)) do
    redis.call('ZREM', key.deleted, name)
  end
  for _, name in ipairs(redis.call('ZRANGE', key.deleted, 0, -kept - 1)) do
    local oldest = key.job_named(name)
    if redis.pcall('HGET', oldest, 'state') == 'deleted' then redis.call('UNLINK', oldest) end
    redis.call('ZREM', key.deleted, name)
  end
  redis.call('PEXPIRE', key.deleted, constants.TOMBSTONE_KEPT_MS)
end

function commands.delete()
  state.changes.is_step = true  -- also during another command's steps, whose remaining steps are then lost
  if state.read() == 'deleted' then
    -- The tombstones of older versions do not expire.
    expire_tombstone(tonumber(redis.call('HGET', key.job, 'deleted')), args.tombstones)
    return {map = {}}
  end
  clock.load()
  check_version(args.version)
  remove_all()
  redis.call('UNLINK', key.job, key.journal, key.consumers)
  for _, interval in ipairs(constants.SAMPLE_INTERVALS_MS) do redis.call('UNLINK', key.timeline(interval)) end
  redis.call('HSET', key.job, 'state', 'deleted', 'deleted', job.now, 'schema', constants.SCHEMA, 'scalars',
    cmsgpack.pack({incarnation = job.incarnation}))
  expire_tombstone(job.now, args.tombstones)
  redis.call('ZREM', key.sweeps, key.name)
  redis.call('SREM', key.jobs, key.name)
  history.announce()
  return {map = {}}
end
