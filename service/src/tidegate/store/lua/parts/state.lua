-- @include parts/values
-- The data of a job, read once and written once, and its configuration (tidegate.store.compiled).
--
-- job has numbers and texts, which are stored together as one packed field. job.now is the processing time of the last
-- command. job.unattended is the total time in which no coordinator ran, since the job was created. job.outages is the
-- same since the bucket was created, as of the last command. job.observed_now is the observed time of the job,
-- job.now - job.unattended. Limits on silence are in observed time.
--
-- changes describes the current command: command (its name), argument (its packed args), before (C and W before it),
-- passed (members that a limit let C pass), is_recorded (the journal has a new record), is_plain (see
-- state.look_for_rare_sets), raised (see target_completeness.raise), known (see observation.known), outage,
-- previous_now and clock (see clock.advance), held_by (the holder of W), queries and stored_queries (see parts/queries),
-- made_idle (number of substreams that became idle), is_unfinished (see parts/evaluate), is_step (the command may read a
-- job in steps).
local state = {job = {}, config = {}, changes = {}}
local job, config = state.job, state.config
local stored  -- the packed text of the job, as read
local stored_schema  -- the schema of the job, as read
local decoded, decoded_bytes, MAX_DECODED_BYTES = {}, 0, 2^21  -- bounded, because maxmemory does not count these tables
local in_force  -- the entry of decoded from which config was copied

local function replace(target, source)
  for name in pairs(target) do target[name] = nil end
  for name, value in pairs(source) do target[name] = value end
end

local function decode(compiled)
  local found = cjson.decode(compiled)
  for _, rule in ipairs(found.policies) do
    if rule.limit then found.has_clock_driven = true end
  end
  return found
end

-- Return the configuration in a stored text. The decoded configurations of the last jobs stay in memory; do not change
-- them.
function state.decoded(compiled)
  if not decoded[compiled] then
    if decoded_bytes + #compiled > MAX_DECODED_BYTES then decoded, decoded_bytes = {}, 0 end
    decoded[compiled], decoded_bytes = decode(compiled), decoded_bytes + #compiled
  end
  return decoded[compiled]
end

-- Read the configuration of the job from its stored text.
function state.configure(compiled)
  local found = state.decoded(compiled)
  if in_force == found then return end
  in_force = nil  -- in case the server ends the function before the copy is complete
  replace(config, found)
  in_force = found
end

-- Make the next call read the configuration, even if its text is unchanged. A command that changes config calls this.
function state.forget_config()
  in_force = nil
end

local function load_fields(kind, compiled)
  local fields = stored and cmsgpack.unpack(stored) or {}
  assert(not kind or fields.incarnation)
  replace(job, fields)
  if kind == 'live' then state.configure(compiled) end
end

-- Read the job; return 'live', 'deleted', or nil if it does not exist. Refuse a job that a newer version has written,
-- whose hash is damaged, or that another command is changing in steps.
function state.read()
  local found = redis.pcall('HMGET', key.job, 'state', 'compiled_config', 'scalars', 'schema')
  if found.err then
    if string.find(found.err, '^WRONGTYPE') then values.refuse('state_damaged') end
    error(found)
  end
  local schema = tonumber(found[4])
  if schema and schema > constants.SCHEMA_IN_STEPS then
    values.refuse('state_too_new', {schema = schema, supported = constants.SCHEMA})
  end
  stored, stored_schema = found[3], schema
  local is_sound = pcall(load_fields, found[1], found[2])
  if not is_sound then values.refuse('state_damaged') end
  if job.steps and not state.changes.is_step then values.refuse('job_busy', {steps = job.steps.id}) end
  return found[1] or nil
end

-- Determine whether the job is plain: without holds, open batches, and idle or done substreams. Its commands skip steps
-- that only read those sets. A command that adds to these sets must not call this.
function state.look_for_rare_sets()
  state.changes.is_plain = redis.call('EXISTS', key.done, key.idle(''), key.holds, key.hold_expiry, key.open_batches,
    key.open_pins) == 0
end

-- Start a job without any state, in a new incarnation.
function state.start(incarnation, epoch, now)
  local unattended = job.unattended or 0
  replace(job, {incarnation = incarnation, outages = job.outages, state_epoch = epoch, now = now, unattended = unattended,
    observed_now = now - unattended, coalesced_watermark_since = now, watermark_since = now, evaluations = 0,
    lowest_clock_driven = math.huge, scheduled = job.scheduled, emissions = job.emissions, throttled = job.throttled,
    last_contact = job.last_contact, revision = job.revision})
end

-- Write the job, if it has changed.
function state.save()
  local packed, schema = cmsgpack.pack(job), job.steps and constants.SCHEMA_IN_STEPS or constants.SCHEMA
  if schema ~= stored_schema then redis.call('HSET', key.job, 'schema', schema) end
  if packed ~= stored then redis.call('HSET', key.job, 'scalars', packed) end
end

-- Refuse a command for another version of the configuration. An absent field of the version stands for any value.
function state.check_version(version)
  if (version.state_epoch or job.state_epoch) ~= job.state_epoch
    or (version.revision or job.revision) ~= job.revision then
    values.refuse('revision_mismatch', {revision = job.revision})
  end
end

-- Let the tombstone of a job expire. Keep the number of tombstones.
function state.expire_tombstone(deleted, kept)
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

-- Replace the job by a tombstone.
function state.delete(kept)
  redis.call('UNLINK', key.job)
  redis.call('HSET', key.job, 'state', 'deleted', 'deleted', job.now, 'schema', constants.SCHEMA, 'scalars',
    cmsgpack.pack({incarnation = job.incarnation}))
  state.expire_tombstone(job.now, kept)
end

-- Clear the values that describe the previous command. argument: the packed args of this command.
function state.forget(command, argument)
  state.changes = {command = command, argument = argument, made_idle = 0, passed = {}, raised = {}, known = {},
    queries = {}, stored_queries = {}}
end

return state
