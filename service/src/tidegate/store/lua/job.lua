-- @include values
-- The data of a job and of its queries, read once and written once in a command, and the configuration of the job
-- (tidegate.store.jobs).
--
-- job has numbers and texts, which are stored together as one packed field. job.now is the processing time of the last
-- command. job.unattended is the total time in which no coordinator ran, since the job was created. job.outages is the
-- same of the bucket, since the bucket was created and as of the last command. job.observed_now is the observed time of the job,
-- job.now - job.unattended. Limits on silence are in observed time.
--
-- changes describes the current command: command (its name), argument (its packed args), before (C and W before it),
-- passed (members that a limit let C pass), is_recorded (the history has a new record), is_plain (see
-- state.look_for_rare_sets), known (see observation.known), unattended, previous_now and clock (see clock.advance), held_by
-- and written_held_by (the holders of W and of the written watermark), queries and stored_queries (see queries.get), combined
-- and combined_query (see combined_here in
-- batches.lua), table_versions (see frames.lua), made_idle (number of substreams that became idle), is_unfinished (see evaluate.lua), skew_bound and
-- slowest (see limits.lowest_within), is_step (the command may read a job in steps).
local state, queries = {job = {}, config = {}, changes = {}}, {}
local job, config = state.job, state.config
local stored  -- the packed text of the job, as read
local stored_schema  -- the schema of the job, as read
local decoded, decoded_bytes, MAX_DECODED_BYTES = {}, 0, 2^21  -- bounded, because maxmemory does not count these tables
local in_force  -- the entry of decoded from which config was copied

-- Clear the values that describe the previous command. argument: the packed args of this command.
function state.forget(command, argument)
  state.changes = {command = command, argument = argument, made_idle = 0, passed = {}, known = {},
    queries = {}, stored_queries = {}}
end

local function replace(target, source)
  for name in pairs(target) do target[name] = nil end
  for name, value in pairs(source) do target[name] = value end
end

-- The configuration

-- Return the configuration in a stored text. The decoded configurations of the last jobs stay in memory; do not change
-- them.
function state.decoded(compiled)
  if decoded[compiled] then return decoded[compiled] end
  local found = cjson.decode(compiled)
  for _, rule in ipairs(found.policies) do
    if rule.follows_clock == nil then rule.follows_clock = rule.limit ~= nil end  -- the text is of an older version
    found.has_followers = found.has_followers or rule.follows_clock
  end
  if decoded_bytes + #compiled > MAX_DECODED_BYTES then decoded, decoded_bytes = {}, 0 end
  decoded[compiled], decoded_bytes = found, decoded_bytes + #compiled
  return found
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
function state.forget_config() in_force = nil end

-- The job

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

-- Determine whether the job is plain: without holds, open batches, and idle or done substreams. Its commands skip steps
-- that only read those sets. Commands that add holds, batches or done substreams assert that it was not called.
function state.look_for_rare_sets()
  state.changes.is_plain = redis.call('EXISTS', key.done, key.idle(''), key.holds, key.hold_expiry, key.open_batches,
    key.open_pins, key.unwritten) == 0
end

-- The queries: run, latest batch and idle clock. Each query is stored as one packed text. run_id is nil if the query has
-- made no call and was not retired.

-- Return a query. reply.finish stores the changes of its fields. The query may be unknown.
function queries.get(name)
  local loaded, stored = state.changes.queries, state.changes.stored_queries
  if not loaded[name] then
    local packed = redis.call('GET', key.query(name))
    loaded[name] = packed and cmsgpack.unpack(packed) or {name = name, waited = 0, outage = 0}
    stored[name] = cmsgpack.pack(loaded[name])  -- packed anew, because the order of the fields in a text may vary
  end
  return loaded[name]
end

-- Write the queries that have changed.
function queries.save()
  for name, query in pairs(state.changes.queries) do
    local packed = cmsgpack.pack(query)
    if packed ~= state.changes.stored_queries[name] then redis.call('SET', key.query(name), packed) end
  end
end

-- Ignore the changes of all queries, which were removed.
function queries.forget() state.changes.queries, state.changes.stored_queries = {}, {} end

-- Return the observed time of a query, and the duration of its outages. Reports without batches ('') use the observed
-- time and the unattended time of the job. A late report of an outage does not move the time back.
function queries.observed_time(query)
  if query == '' then return job.observed_now, job.unattended end
  local of = queries.get(query)
  return math.max(job.now - of.outage, of.idle_clock or -math.huge), of.outage
end

-- Record how long the current run of a query has waited for the coordinator.
function queries.add_outage(query, waited)
  query.outage = query.outage + math.max(0, waited - query.waited)
  query.waited = math.max(waited, query.waited)
end

-- Record that a query was caught up at a processing time.
function queries.advance_idle_clock(query, time)
  query.idle_clock = values.highest(time - query.outage, query.idle_clock)
  query.proven = values.highest(time, query.proven)
end

return state, queries
