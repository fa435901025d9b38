#!lua name=tidegate_2192540adc3d5a3c
local key = {wake = 'tidegate:wake:', of_job = {'max_event_times', 'active', 'clock_driven', 'constant', 'advancing', 'next_change', 'idle_constant', 'idle_advancing', 'idle_lagged', 'frozen', 'since', 'forced_idle', 'done', 'rows', 'missing_queries', 'last_seen', 'delays', 'learned_lags', 'hours', 'queries', 'query_names', 'open_batches', 'open_pins', 'holds', 'hold_expiry', 'hold_reasons', 'replies', 'columns'}, of_query = {'last_events', 'idle', 'query', 'pinned_watermarks', 'pinned_batches', 'fenced_runs', 'staged', 'coming'}}
function key.timeline(interval) return key.job .. ':timeline:' .. interval end
function key.lagged(limit) return key.job .. ':lagged:' .. limit end
function key.last_events(query) return key.job .. ':last_events:' .. query end
function key.idle(query) return key.job .. ':idle:' .. query end
function key.query(query) return key.job .. ':query:' .. query end
function key.pinned_watermarks(query) return key.job .. ':pinned_watermarks:' .. query end
function key.pinned_batches(query) return key.job .. ':pinned_batches:' .. query end
function key.fenced_runs(query) return key.job .. ':fenced_runs:' .. query end
function key.staged(query) return key.job .. ':staged:' .. query end
function key.coming(query) return key.job .. ':coming:' .. query end
function key.pieces(call) return key.job .. ':pieces:' .. call end
function key.hour_rows(hour) return key.job .. ':hour_rows:' .. hour end
function key.hour_late(hour) return key.job .. ':hour_late:' .. hour end
function key.enter(keys)
if keys[1] == key.job then return end
key.job, key.sweeps, key.jobs, key.deleted, key.incarnation, key.attendance = unpack(keys, 1, 6)
key.name = string.match(keys[1], '{(.*)}$') or string.match(keys[1], '}/(.*)$')
key.journal = key.job .. ':journal'
for _, name in ipairs(key.of_job) do key[name] = key.job .. ':' .. name end
end
function key.job_named(name)
local suffix = string.sub(key.job, -1) == '}' and '}' or ''
return string.sub(key.job, 1, #key.job - #key.name - #suffix) .. name .. suffix
end
local constants = {SCHEMA = 1, SCHEMA_IN_STEPS = 1.5, STEP = 250, ENTRIES = 1000, PIECE = 500, PIECES_KEPT_MS = 600000, REPLIES_KEPT = 16, REPLIES_KEPT_MS = 60000, RECORDS_KEPT = 10000, RECORDS_KEPT_MS = 604800000, NAMES_KEPT = 20, HOUR = 3600000, HOURS_KEPT = 168, ENTRIES_KEPT = 50000, PINNED_WATERMARKS_KEPT = 100, TOMBSTONE_KEPT_MS = 604800000, SAMPLE_INTERVALS_MS = {15000, 300000}, SAMPLES_KEPT = {240, 288}, LIMITS = {'idle_timeout_ms', 'max_retention_ms', 'query_timeout_ms', 'max_batch_hold_ms', 'max_delay_ms', 'max_lull_ms', 'wall_clock_lag_ms'}, POLICY_LIMITS = {'max_delay_ms', 'max_lull_ms', 'wall_clock_lag_ms'}, ROW = 1000, MAX_WEIGHT = 10000000000000, MAX_BUCKETS = 640, STEPS = 8, HIGHEST_BUCKET = 1838, GAMMA = 1.02020202020202, DECAY = {1.0, 0.9170040432046712, 0.8408964152537145, 0.7711054127039704, 0.7071067811865476, 0.6484197773255048, 0.5946035575013605, 0.5452538663326288}, ROWS_BEYOND = 10, SURPRISE = 3.0, MARGIN = 0.5, MAX_WIDENING = 4, NARROWING = 4, MAX_STEPS = 64}
local args
local function create()
local values = (function()
-- Numbers and refusals. "No watermark" is nil in Lua, '' in hashes, -inf as a score, and absent in replies.
-- Lua prints integers of 15 digits and more with an exponent, so a number that becomes part of a text passes through text().
-- An argument of redis.call may be a number, because Redis prints all digits of an integer up to HIGHEST.
local values = {HIGHEST = 9007199254740991}

function values.number(value)
  if type(value) == 'number' then return value end
  if not value or value == '' or value == '-inf' then return nil end
  return tonumber(value)
end

function values.text(number)
  if number == nil then return '' end
  return string.format('%.0f', number)
end

function values.score(number)
  return number or -math.huge
end

function values.above(a, b)
  return a ~= nil and (b == nil or a > b)
end

function values.highest(a, b)
  if values.above(a, b) then return a end
  return b
end

-- Return value - amount, or nil if the difference is below the range of numbers.
function values.minus(value, amount)
  local difference = value - amount
  if difference < -values.HIGHEST then return nil end
  return difference
end

-- Return the remainder of a floor division, exact on doubles. The % operator of Lua is not exact.
function values.modulo(a, b)
  local rest = math.fmod(a, b)
  if rest < 0 then return rest + b end
  return rest
end

-- Return the member with the lowest score of a sorted set, and that score.
function values.lowest_of(name)
  local first = redis.call('ZRANGE', name, 0, 0, 'WITHSCORES')
  return first[1], values.number(first[2])
end

function values.highest_of(name)
  local last = redis.call('ZRANGE', name, 0, 0, 'REV', 'WITHSCORES')
  return last[1], values.number(last[2])
end

-- Return whether a sorts before b by bytes, as Redis sorts members; the < of Lua depends on the locale of the server.
function values.sorts_before(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then return x < y end
  end
  return #a < #b
end

-- End the command with an error of tidegate.domain.errors; details has its fields. Call this before the first write.
function values.refuse(code, details)
  details = details or {}
  details.error = code
  error({refused = details})
end

return values
end)()
local state = (function()
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
end)()
local journal = (function()
-- The journal of a job. See tidegate.domain.journal. Details that are nil or '' are omitted.
local text = values.text
local job = state.job
local journal = {}

-- Append a record with details: alternating names and values.
function journal.write(kind, ...)
  local entry, details = {'kind', kind}, {...}
  for i = 1, select('#', ...), 2 do
    local value = details[i + 1]
    if type(value) == 'number' then value = text(value) end
    if value and value ~= '' then entry[#entry + 1], entry[#entry + 2] = details[i], value end
  end
  redis.call('XADD', key.journal, 'MAXLEN', '=', constants.RECORDS_KEPT, text(math.max(job.now, 0)) .. '-*',
    unpack(entry))
  redis.call('XTRIM', key.journal, 'MINID', '=', math.max(job.now - constants.RECORDS_KEPT_MS, 0))
  state.changes.is_recorded = true
end

-- Wake the clients that wait for records.
function journal.announce()
  redis.call('PUBLISH', key.wake .. key.name, '')
end

-- Return the first NAMES_KEPT members as a JSON array; nil if there are no members.
function journal.named(members)
  if #members == 0 then return nil end
  local first = {}
  for i = 1, math.min(#members, constants.NAMES_KEPT) do first[i] = members[i] end
  return cjson.encode(first)
end

-- Return an empty summary: the number of members, and the first members. A command in steps stores a summary only.
function journal.summary()
  return {count = 0, first = {}}
end

-- Add members to a summary.
function journal.add(summary, members)
  for _, member in ipairs(members) do
    summary.count = summary.count + 1
    if summary.count <= constants.NAMES_KEPT then summary.first[summary.count] = member end
  end
end

-- Record a change of some substreams of a query, with additional details. members: a list or a summary.
function journal.write_substreams(kind, query, members, ...)
  local count = members.count or #members
  if count == 0 then return end
  journal.write(kind, 'query', query, 'count', count, 'substreams', journal.named(members.first or members), ...)
end

-- Record an operator's command. members: the affected members, or a summary of them.
function journal.write_action(action, query, members, ...)
  local count = members and (members.count or #members) or 0
  journal.write('action', 'action', action, 'query', query, 'actor', args.actor, 'reason', args.reason,
    'count', count > 0 and count or nil, 'substreams', members and journal.named(members.first or members), ...)
end

-- Count one action of a limit.
function journal.count_limit(limit)
  redis.call('HINCRBY', key.job, 'limit ' .. limit, 1)
end

return journal
end)()
local queries = (function()
-- The queries of a job: run, latest batch and idle clock. Each query is stored as one packed text, which a command reads
-- and writes at most once. run_id is nil if the query has made no call and was not retired.
local queries = {}

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
function queries.forget()
  state.changes.queries, state.changes.stored_queries = {}, {}
end

return queries
end)()
local bulk = (function()
-- Redis commands with many arguments, split into chunks because unpack fails near 8000 values.
local bulk = {CHUNK = 2000}
local CHUNK = bulk.CHUNK

-- Add members. pairs_ has alternating scores and members. Return the number of new members.
function bulk.zadd(name, flag, pairs_)
  local added = 0
  for first = 1, #pairs_, 2 * CHUNK do
    local last = math.min(first + 2 * CHUNK - 1, #pairs_)
    if flag then
      added = added + redis.call('ZADD', name, flag, unpack(pairs_, first, last))
    else
      added = added + redis.call('ZADD', name, unpack(pairs_, first, last))
    end
  end
  return added
end

-- Add members with the same score.
function bulk.zadd_all(name, score, members, flag)
  local pairs_ = {}
  for i, member in ipairs(members) do pairs_[2 * i - 1], pairs_[2 * i] = score, member end
  bulk.zadd(name, flag, pairs_)
end

-- Add members with a column of scores.
function bulk.zadd_each(name, scores, members)
  local pairs_ = {}
  for i, member in ipairs(members) do pairs_[2 * i - 1], pairs_[2 * i] = scores[i], member end
  bulk.zadd(name, nil, pairs_)
end

local function change(command, name, members)
  for first = 1, #members, CHUNK do
    redis.call(command, name, unpack(members, first, math.min(first + CHUNK - 1, #members)))
  end
end

function bulk.sadd(name, members)
  change('SADD', name, members)
end

function bulk.srem(name, members)
  change('SREM', name, members)
end

function bulk.zrem(name, members)
  change('ZREM', name, members)
end

function bulk.hdel(name, fields)
  change('HDEL', name, fields)
end

local function read(command, name, names)
  local found = {}
  for first = 1, #names, CHUNK do
    local part = redis.call(command, name, unpack(names, first, math.min(first + CHUNK - 1, #names)))
    for i = 1, #part do found[first + i - 1] = part[i] end
  end
  return found
end

function bulk.zmscore(name, members)
  return read('ZMSCORE', name, members)
end

-- Return a column: 1 for each member that a set has, or else 0.
function bulk.smismember(name, members)
  return read('SMISMEMBER', name, members)
end

-- Move those members to another sorted set that a set has.
function bulk.zmove(from, to, members)
  local present, moved = {}, {}
  for i, score in ipairs(bulk.zmscore(from, members)) do
    if score then
      present[#present + 1] = members[i]
      moved[#moved + 1], moved[#moved + 2] = score, members[i]
    end
  end
  bulk.zrem(from, present)
  bulk.zadd(to, nil, moved)
end

-- Return the members with a value in a column, and the other members, both in order.
function bulk.split(members, column)
  local present, absent = {}, {}
  for i, member in ipairs(members) do
    local list = column[i] and present or absent
    list[#list + 1] = member
  end
  return present, absent
end

-- Return the members that a sorted set has, and the other members, both in order.
function bulk.split_by_set(name, members)
  return bulk.split(members, bulk.zmscore(name, members))
end

function bulk.hmget(name, fields)
  return read('HMGET', name, fields)
end

-- Set fields. pairs_ has alternating fields and values.
function bulk.hset(name, pairs_)
  for first = 1, #pairs_, 2 * CHUNK do
    redis.call('HSET', name, unpack(pairs_, first, math.min(first + 2 * CHUNK - 1, #pairs_)))
  end
end

-- Add to a counter. An addition that would exceed 64 bits is ignored, so that the command does not fail.
function bulk.add(name, field, amount)
  redis.pcall('HINCRBY', name, field, amount)
end

-- Add amounts, which are numbers or texts, to different counters. HINCRBY adds sums that a double cannot hold.
function bulk.add_each(name, fields, amounts)
  local found, sums, n = bulk.hmget(name, fields), {}, 0
  for i, field in ipairs(fields) do
    local sum = (found[i] and tonumber(found[i]) or 0) + amounts[i]
    if sum <= values.HIGHEST then
      sums[n + 1], sums[n + 2] = field, sum
      n = n + 2
    else
      bulk.add(name, field, amounts[i])
    end
  end
  bulk.hset(name, sums)
end

return bulk
end)()
local policy = (function()
-- The policy of a substream, and its lag. A member is '<query>/<substream>'; query names have no slash.
local config = state.config
local policy = {PLACEHOLDER = {type = 'reported', accepts_watermarks = true}}
local SLASH = 47
-- The policies of the last names, by the list of policies and by name. Without them, each report would match each of its
-- names with each pattern. Their number is bounded, because maxmemory does not count this table.
local remembered, size, MAX_REMEMBERED = {}, 0, 20000

function policy.query_of(member)
  return string.sub(member, 1, string.find(member, '/', 1, true) - 1)
end

function policy.name_of(member)
  return string.sub(member, string.find(member, '/', 1, true) + 1)
end

-- Return whether a name matches a pattern. pieces: the texts between the * of the pattern, which are searched once, from
-- left to right. The first place of each piece leaves the most room for the next one, so no other place is tried.
local function matches(pieces, name)
  local count = #pieces
  local first, last = pieces[1], pieces[count]
  if count == 1 then return name == first end
  if last ~= '' and string.sub(name, -#last) ~= last then return false end
  if first ~= '' and string.sub(name, 1, #first) ~= first then return false end
  local at = #first + 1
  for i = 2, count - 1 do
    local from, to = string.find(name, pieces[i], at, true)
    if not from then return false end
    at = math.max(to + 1, from)  -- an empty piece ends before it begins
  end
  return #name - at + 1 >= #last
end

local function first_match(policies, name)
  for i = 2, #policies do
    if matches(policies[i].pieces, name) then return policies[i] end
  end
  return policies[1]
end

-- Return the policy of a member: the first override in `policies` that matches, or else the policy of the job.
function policy.among(policies, member)
  if #policies == 1 and string.byte(member, -1) ~= SLASH then return policies[1] end
  local name = policy.name_of(member)
  if name == '' then return policy.PLACEHOLDER end
  local of_name = remembered[policies]
  if of_name and of_name[name] then return of_name[name] end
  if size >= MAX_REMEMBERED then remembered, size, of_name = {}, 0, nil end
  if not of_name then
    of_name = {}
    remembered[policies] = of_name
  end
  of_name[name], size = first_match(policies, name), size + 1
  return of_name[name]
end

function policy.of(member)
  return policy.among(config.policies, member)
end

-- Return the members whose policies do not follow the clock, and the other members, both in order.
function policy.by_kind(members)
  if not config.has_clock_driven then return members, {} end
  local flat, clock_driven = {}, {}
  for _, member in ipairs(members) do
    local kind = policy.of(member).limit and clock_driven or flat
    kind[#kind + 1] = member
  end
  return flat, clock_driven
end

function policy.is_target(rule)
  return rule.type == 'target_completeness'
end

-- Return a learned lag, limited to the range from floor to ceiling of its policy.
function policy.within(rule, lag)
  return math.max(rule.ceiling_ms and math.min(lag, rule.ceiling_ms) or lag, rule.floor_ms)
end

-- Return the lag in force of each member; false if the policy has no lag.
function policy.lags_of(members)
  local lags, targets, names = {}, {}, {}
  for i, member in ipairs(members) do
    local rule = policy.of(member)
    lags[i] = rule.initial_lag or false
    if policy.is_target(rule) then targets[#targets + 1], names[#names + 1] = i, member end
  end
  for at, line in pairs(#names > 0 and bulk.hmget(key.learned_lags, names) or {}) do
    local learned = line and tonumber(string.match(line, '^%d+'))
    if learned then lags[targets[at]] = policy.within(policy.of(names[at]), learned) end
  end
  return lags
end

-- Return the lag of a policy under which a watermark is max event time - lag; nil for other policies.
function policy.constant_lag(rule)
  return rule.type == 'limiting_lag' and rule.initial_lag or nil
end

-- Return the lag of a member whose watermark is always max event time - lag; nil for other policies.
function policy.flat_lag(rule, member)
  if policy.is_target(rule) then return policy.lags_of({member})[1] end
  return policy.constant_lag(rule)
end

return policy
end)()
local history = (function()
-- The history of one value, with the slots of tidegate.domain.history. cells[1] is the oldest cell; an empty cell is
-- false. boundary is in sixteenths of a millisecond, length in milliseconds.
local text = values.text
local history = {}
local CELLS = 17

function history.start(length)
  local h = {length = length, cells = {}}
  for i = 1, CELLS do h.cells[i] = false end
  return h
end

-- Return a history as text, for a reply: length, boundary and cells, with commas between them.
function history.line(h)
  local parts = {text(h.length), text(h.boundary)}
  for i = 1, CELLS do parts[#parts + 1] = h.cells[i] and text(h.cells[i]) or '' end
  return table.concat(parts, ',')
end

-- Close the slots that have ended by a time; return their number.
function history.roll(h, time)
  local now = time * 16
  if now < h.boundary then return 0 end
  local closed = math.floor((now - h.boundary) / h.length) + 1
  local shift, newest = math.min(closed, CELLS), h.cells[CELLS]
  for i = 1, CELLS do
    local cell = h.cells[i + shift]
    if cell == nil then cell = newest end
    h.cells[i] = cell
  end
  h.boundary = h.boundary + closed * h.length
  return closed
end

-- Record the current value and return the value of `length` ago.
function history.sample(h, time, value)
  if not h.boundary then
    h.boundary = time * 16 + h.length
  elseif history.roll(h, time) >= CELLS then
    h.boundary = time * 16 + h.length
  end
  h.cells[CELLS] = value or false
  return h.cells[1] or nil
end

-- Return the next time at which the returned value changes to one that satisfies `matters`, without new samples; nil if
-- no value of the history satisfies it.
function history.next_change(h, matters)
  if not h.boundary then return nil end
  for shifts = 1, CELLS - 1 do
    local cell = h.cells[shifts + 1]
    if cell and matters(cell) then return math.ceil((h.boundary + (shifts - 1) * h.length) / 16) end
  end
end

return history
end)()
local clock_driven = (function()
-- The state of a substream whose policy follows the clock. An evaluation must not visit every such substream, so the
-- watermarks are computed when needed. The watermark p of a policy, polled at time t, is
-- reached + max(0, t - start):
--
--   lull         start is the deadline                     constant until start, then advancing with the clock
--   wall clock   start is reached + wall_clock_lag_ms      as for lull
--   delay        a step function                           constant until its next step
--
-- The watermark of the substream itself is  max(own, min(p(t), cap))  over the evaluations (t, cap) since own was last
-- materialized. cap is the lowest event time of a report, or infinite. job.capped lists the evaluations that no later
-- evaluation supersedes; only these matter.
--
-- The fields of a state s are own, since (the number of the evaluation at which own was materialized), reached, and
-- deadline. Under `delay`, polled and history replace deadline.
local highest, minus = values.highest, values.minus
local job, config = state.job, state.config
local clock_driven = {}

-- For each policy, by the name of its limit, a table of functions:
--
--   at           return the watermark that a poll at a time would give
--   poll         poll the policy
--   observe      apply an event time, which max_event_time already includes
--   catch_up     poll the policy as of the last evaluation, as if every evaluation had polled it
--   next_change  return the time at which the watermark passes `reading`, its current value; if it then advances with
--                the clock, also return its distance from the clock
local lull, wall_clock, delay = {}, {}, {}
local kinds = {max_lull_ms = lull, wall_clock_lag_ms = wall_clock, max_delay_ms = delay}

function lull.at(s, _, time)
  if s.reached and s.deadline and time > s.deadline then
    return math.min(s.reached + (time - s.deadline), values.HIGHEST)
  end
  return s.reached
end

function lull.poll(s, rule, time)
  s.reached = lull.at(s, rule, time)
  s.deadline = math.max(s.deadline or time + rule.max_lull_ms, time)
end

function lull.observe(s, rule, lagged)
  s.reached, s.deadline = highest(s.reached, lagged), job.observed_now + rule.max_lull_ms
end

function lull.catch_up(s, rule)
  s.reached = lull.at(s, rule, job.evaluated)
  if s.deadline then s.deadline = math.max(s.deadline, job.evaluated) end
end

function lull.next_change(s, _, reading)
  if s.reached == nil or s.deadline == nil then return nil end
  local start = s.deadline + (reading - s.reached)
  return start, reading - start
end

function wall_clock.at(s, rule, time, unattended)
  return highest(s.reached, minus(time + unattended, rule.wall_clock_lag_ms))
end

function wall_clock.poll(s, rule, time)
  s.reached = wall_clock.at(s, rule, time, job.unattended)
end

function wall_clock.observe(s, rule, lagged)
  s.reached = highest(wall_clock.at(s, rule, job.observed_now, job.unattended), lagged)
end

function wall_clock.catch_up(s, rule)
  s.reached = wall_clock.at(s, rule, job.evaluated, job.unattended_at_evaluation)
end

function wall_clock.next_change(_, rule, reading)
  local distance = job.unattended - rule.wall_clock_lag_ms
  if reading == nil then return -math.huge, distance end
  return reading - distance, distance
end

function delay.at(s)
  return s.reached
end

function delay.poll(s, _, time, max_event_time)
  s.reached, s.polled = highest(s.reached, history.sample(s.history, time, max_event_time)), time
end

function delay.observe(s, rule, lagged, max_event_time)
  s.reached = highest(s.reached, lagged)
  delay.poll(s, rule, job.observed_now, max_event_time)
end

-- Return the gaps between evaluations after which a history may restart its slots.
function clock_driven.gaps()
  return job.gaps or {}
end

function delay.catch_up(s, _, max_event_time)
  local h, time = s.history, job.evaluated
  if h.boundary then
    for _, gap in ipairs(clock_driven.gaps()) do
      if s.polled and gap.from >= s.polled and gap.to <= time then
        history.roll(h, gap.from)
        history.sample(h, gap.to, max_event_time)
      end
    end
    history.roll(h, time)
    s.reached = highest(s.reached, h.cells[1] or nil)
  end
  s.polled = time
end

function delay.next_change(s, _, reading)
  if not s.history.boundary then return -math.huge end
  return history.next_change(s.history, function(cell) return values.above(cell, reading) end)
end

function clock_driven.start(rule, own)
  local s = {own = own, since = job.evaluations or 0}
  if rule.max_delay_ms then s.history = history.start(rule.max_delay_ms) end
  return s
end

-- Return the state of a member from its stored text.
function clock_driven.read(packed)
  return cmsgpack.unpack(packed)
end

function clock_driven.write(member, s)
  redis.call('HSET', key.clock_driven, member, cmsgpack.pack(s))
end

-- Return the capped evaluations, oldest first: sequence, time, cap.
function clock_driven.capped()
  return job.capped or {}
end

-- Record the current evaluation, which supersedes earlier evaluations with the same or a lower cap.
function clock_driven.push_capped(cap)
  local evaluations = clock_driven.capped()
  while #evaluations > 0 and evaluations[#evaluations].cap <= cap do evaluations[#evaluations] = nil end
  evaluations[#evaluations + 1] = {sequence = job.evaluations + 1, time = job.observed_now, cap = cap}
  job.capped = evaluations
  return #evaluations
end

function clock_driven.clear_capped()
  job.capped, job.gaps = nil, nil
end

-- Return the watermark that a poll of the policy would give now.
function clock_driven.now(s, rule)
  return kinds[rule.limit].at(s, rule, job.observed_now, job.unattended)
end

-- Return the watermark of the substream after the last evaluation.
function clock_driven.own_watermark(s, rule)
  local watermark = s.own
  for _, one in ipairs(clock_driven.capped()) do
    if one.sequence > s.since then
      local polled = kinds[rule.limit].at(s, rule, one.time, job.unattended_at_evaluation)
      if polled then watermark = highest(watermark, math.min(polled, one.cap)) end
    end
  end
  return watermark
end

-- Materialize own, and poll the policy as of the last evaluation.
function clock_driven.materialize(s, rule, max_event_time)
  s.own = clock_driven.own_watermark(s, rule)
  if job.evaluations > s.since then kinds[rule.limit].catch_up(s, rule, max_event_time) end
  s.since = job.evaluations
end

function clock_driven.poll(s, rule, max_event_time)
  kinds[rule.limit].poll(s, rule, job.observed_now, max_event_time)
end

-- Apply an event time; return the watermark by the lag alone.
function clock_driven.observe(s, rule, event_time, max_event_time)
  local lagged = minus(event_time, rule.initial_lag)
  kinds[rule.limit].observe(s, rule, lagged, max_event_time)
  return lagged
end

function clock_driven.next_change(s, rule, reading)
  return kinds[rule.limit].next_change(s, rule, reading)
end

-- Return the length of the shortest history of the job's policies, in milliseconds; nil if no policy has a history.
function clock_driven.shortest_history()
  local shortest
  for _, rule in ipairs(config.policies) do
    if rule.max_delay_ms then shortest = math.min(shortest or rule.max_delay_ms, rule.max_delay_ms) end
  end
  return shortest
end

return clock_driven
end)()
local advancing = (function()
-- The substreams whose policies follow the clock, in sorted sets, so that an evaluation costs O(log n):
--
--   key.constant    member -> watermark, while it is constant
--   key.advancing   member -> watermark - observed time, while it advances with the clock
--   key.next_change member -> observed time at which it starts to advance or takes its next step
--
-- Idle substreams follow the clock, too. They are in key.idle_constant and key.idle_advancing, and count towards the max
-- watermark only.
--
-- job.lowest_clock_driven is the lowest own watermark of these substreams. An evaluation raises this value to
-- max(lowest, min(P, cap)), where P is the lowest policy watermark. The result is exact unless a substream has left
-- these sets. If a substream has left and the cap is below P, the evaluation polls each substream, as in
-- tidegate.domain. If job.evaluate_each is set, the next evaluation polls each substream. If there are more than
-- bulk.CHUNK, only a sweep polls each substream, in steps. Until then, job.lowest_clock_driven stays where it is.
local number, score, highest, above = values.number, values.score, values.highest, values.above
local job, config = state.job, state.config
local advancing = {}
local MAX_CAPPED, MAX_GAPS = 16, 8

-- Return the sorted sets of the active substreams, or those of the idle ones.
local function sets_of(is_idle)
  if is_idle then return key.idle_constant, key.idle_advancing end
  return key.constant, key.advancing
end

-- Return a column: whether a member is idle and follows the clock.
function advancing.idle_ones(members)
  return bulk.zmscore(key.idle_lagged, members)
end

-- Write the state of a substream, and add it to its sorted sets.
function advancing.place(member, s, rule, is_idle)
  clock_driven.write(member, s)
  local reading = highest(s.own, s.reached)
  local change = clock_driven.next_change(s, rule, reading)
  local constant, moving = sets_of(is_idle)
  redis.call('ZREM', moving, member)
  redis.call('ZADD', constant, score(reading), member)
  if change then
    redis.call('ZADD', key.next_change, score(change), member)
  else
    redis.call('ZREM', key.next_change, member)
  end
end

function advancing.remove(members)
  for _, name in ipairs({key.constant, key.advancing, key.next_change, key.idle_constant, key.idle_advancing,
    key.idle_lagged}) do
    bulk.zrem(name, members)
  end
  for _, limit in ipairs(constants.POLICY_LIMITS) do bulk.zrem(key.lagged(limit), members) end
end

-- Call visit(member, s, rule, max_event_time, i) for each member.
local function each(members, visit)
  local event_times, lines = bulk.zmscore(key.max_event_times, members), bulk.hmget(key.clock_driven, members)
  for i, member in ipairs(members) do
    local rule = policy.of(member)
    visit(member, clock_driven.read(lines[i]), rule, number(event_times[i]), i)
  end
end

-- Let active members be idle.
function advancing.make_idle(members)
  bulk.zmove(key.constant, key.idle_constant, members)
  bulk.zmove(key.advancing, key.idle_advancing, members)
  for _, limit in ipairs(constants.POLICY_LIMITS) do bulk.zmove(key.lagged(limit), key.idle_lagged, members) end
end

-- Remove members; return their watermarks, which then stay constant.
function advancing.freeze(members)
  local watermarks = {}
  each(members, function(member, s, rule, max_event_time)
    clock_driven.materialize(s, rule, max_event_time)
    watermarks[#watermarks + 1] = score(s.own)
    clock_driven.write(member, s)
  end)
  advancing.remove(members)
  return watermarks
end

-- Let idle members be active, with their stored state.
function advancing.make_active(members)
  local idle = advancing.idle_ones(members)
  for _, name in ipairs({key.idle_constant, key.idle_advancing, key.idle_lagged}) do bulk.zrem(name, members) end
  each(members, function(member, s, rule, max_event_time, i)
    if idle[i] then
      clock_driven.materialize(s, rule, max_event_time)
    else  -- frozen
      s.since = job.evaluations
    end
    advancing.place(member, s, rule)
    local lagged = max_event_time and values.minus(max_event_time, rule.initial_lag)
    redis.call('ZADD', key.lagged(rule.limit), score(lagged), member)
    job.lowest_clock_driven = math.min(job.lowest_clock_driven, s.own or -math.huge)
    if above(s.own, job.max_watermark) then job.evaluate_each = 1 end  -- s.own was restored while the member was idle
  end)
end

-- Apply an event time to an active member, or add a new member. packed: the stored state of the member, if any.
function advancing.observe(member, packed, event_time, before)
  local rule, s = policy.of(member), nil
  if packed then
    s = clock_driven.read(packed)
    clock_driven.materialize(s, rule, before)
  else
    s = clock_driven.start(rule)
    job.lowest_clock_driven = -math.huge
  end
  local lagged = event_time and clock_driven.observe(s, rule, event_time, highest(event_time, before))
  advancing.place(member, s, rule)
  if event_time or not packed then
    redis.call('ZADD', key.lagged(rule.limit), 'GT', score(lagged or nil), member)
  end
end

-- Materialize members, and call visit(member, s, rule, max_event_time, i).
function advancing.each_materialized(members, visit)
  each(members, function(member, s, rule, max_event_time, i)
    clock_driven.materialize(s, rule, max_event_time)
    visit(member, s, rule, max_event_time, i)
  end)
end

-- Return the sorted sets that together have each member once, in an order that evaluations do not change.
function advancing.sets()
  local sets = {}
  for i, limit in ipairs(constants.POLICY_LIMITS) do sets[i] = key.lagged(limit) end
  sets[#sets + 1] = key.idle_lagged
  return sets
end

-- Poll members. Return the lowest own watermark of the active ones.
function advancing.poll(members, cap)
  local lowest, idle = math.huge, advancing.idle_ones(members)
  advancing.each_materialized(members, function(member, s, rule, max_event_time, i)
    clock_driven.poll(s, rule, max_event_time)
    if s.reached then s.own = highest(s.own, math.min(s.reached, cap)) end
    s.since = job.evaluations + 1
    advancing.place(member, s, rule, idle[i])
    if not idle[i] then lowest = math.min(lowest, s.own or -math.huge) end
    job.max_watermark = highest(s.own, job.max_watermark)
  end)
  return lowest
end

-- Record an evaluation that has polled all members.
function advancing.record_polls(lowest)
  job.lowest_clock_driven = lowest
  clock_driven.clear_capped()
  job.evaluate_each = nil
  job.evaluated, job.unattended_at_evaluation = job.observed_now, job.unattended
  job.evaluations = job.evaluations + 1
end

-- Return whether the next evaluation must poll each member.
local function is_each_due()
  return job.evaluate_each or job.unattended ~= job.unattended_at_evaluation
end

local function are_many()
  local active = redis.call('ZCARD', key.constant) + redis.call('ZCARD', key.advancing)
  return active + redis.call('ZCARD', key.idle_lagged) > bulk.CHUNK
end

-- Return whether each member must be polled in steps, before the next evaluation.
function advancing.needs_steps()
  return config.has_clock_driven and not job.is_complete and is_each_due() and are_many()
end

-- Move at most CHUNK members that are due to advance or to take a step; return their number.
local function take_changes()
  local due = redis.call('ZRANGE', key.next_change, '-inf', job.observed_now, 'BYSCORE', 'LIMIT', 0, bulk.CHUNK)
  if #due == 0 then return 0 end
  local idle, moved, scored = advancing.idle_ones(due), {}, {{}, {}}  -- the members that begin to advance
  each(due, function(member, s, rule, max_event_time, i)
    if rule.max_delay_ms then
      clock_driven.materialize(s, rule, max_event_time)
      clock_driven.poll(s, rule, max_event_time)
      return advancing.place(member, s, rule, idle[i])
    end
    local _, distance = clock_driven.next_change(s, rule, highest(s.own, s.reached))
    if math.abs(distance) > values.HIGHEST then  -- no exact score: constant until the next evaluation
      redis.call('ZADD', (sets_of(idle[i])), score(highest(s.own, clock_driven.now(s, rule))), member)
      redis.call('ZADD', key.next_change, score(job.observed_now + 1), member)
    else
      local of_kind = scored[idle[i] and 2 or 1]
      moved[#moved + 1], of_kind[#of_kind + 1], of_kind[#of_kind + 2] = member, distance, member
    end
  end)
  for _, name in ipairs({key.next_change, key.constant, key.idle_constant}) do bulk.zrem(name, moved) end
  bulk.zadd(key.advancing, nil, scored[1])
  bulk.zadd(key.idle_advancing, nil, scored[2])
  return #due
end

-- Return the lowest and the highest watermark of active or idle members, infinite if there are none. A missing watermark
-- counts as -inf.
local function extremes_of(is_idle)
  local lowest, top, constant, moving = math.huge, -math.huge, sets_of(is_idle)
  local member, reading = values.lowest_of(constant)
  if member then
    lowest = reading or -math.huge
    local _, last = values.highest_of(constant)
    top = last or -math.huge
  end
  member, reading = values.lowest_of(moving)
  if member then
    lowest = math.min(lowest, reading + job.observed_now, values.HIGHEST)
    local _, last = values.highest_of(moving)
    top = math.max(top, math.min(last + job.observed_now, values.HIGHEST))
  end
  return lowest, top
end

-- Return the lowest current watermark of the active members, and the highest one of all members.
local function extremes()
  local lowest, top = extremes_of(false)
  if redis.call('EXISTS', key.idle_lagged) == 0 then return lowest, top end
  local _, top_of_idle = extremes_of(true)
  return lowest, math.max(top, top_of_idle)
end

local function note_gap()
  local shortest = clock_driven.shortest_history()
  if not shortest or not job.evaluated or job.observed_now - job.evaluated <= shortest then return end
  job.gaps = clock_driven.gaps()
  table.insert(job.gaps, {from = job.evaluated, to = job.observed_now})
  if #job.gaps >= MAX_GAPS then job.evaluate_each = 1 end
end

local function poll_each(cap)
  local lowest = math.huge
  for _, name in ipairs(advancing.sets()) do
    lowest = math.min(lowest, advancing.poll(redis.call('ZRANGE', name, 0, -1), cap))
  end
  advancing.record_polls(lowest)
end

-- Evaluate without polling each member; return whether more changes are due.
local function evaluate_sets(cap, has_left)
  note_gap()
  local is_unfinished = take_changes() == bulk.CHUNK
  local lowest, top = extremes()
  if has_left and cap < lowest and lowest < math.huge then
    if not are_many() then
      poll_each(cap)
      return is_unfinished
    end
    job.evaluate_each, is_unfinished = 1, true
  else
    job.lowest_clock_driven = lowest == math.huge and lowest or math.max(job.lowest_clock_driven, math.min(lowest, cap))
  end
  if top > -math.huge then job.max_watermark = highest(math.min(top, cap), job.max_watermark) end
  if clock_driven.push_capped(cap) >= MAX_CAPPED then job.evaluate_each = 1 end
  job.evaluated, job.unattended_at_evaluation = job.observed_now, job.unattended
  job.evaluations = job.evaluations + 1
  return is_unfinished
end

-- Evaluate the members. cap: limit on their watermarks (infinite: no limit). has_left: a member became idle in this
-- command. Return the lowest own watermark (infinite if there are no members), and whether another evaluation is due.
function advancing.evaluate(cap, has_left)
  local is_unfinished = false
  if not config.has_clock_driven or redis.call('EXISTS', key.clock_driven) == 0 then
    advancing.record_polls(math.huge)
  elseif is_each_due() then
    if are_many() then return job.lowest_clock_driven, true end
    poll_each(cap)
  else
    is_unfinished = evaluate_sets(cap, has_left)
  end
  if cap < math.huge and config.has_clock_driven then
    local _, top = extremes()
    is_unfinished = is_unfinished or top > cap
  end
  return job.lowest_clock_driven, is_unfinished
end

return advancing
end)()
local max_event_times = (function()
-- The max event times of substreams. Under a constant lag, the watermark of an active substream is usually its max event
-- time - lag. Such a substream has no entry in key.max_event_times, which saves a quarter of the memory and the time.
local number, highest, minus = values.number, values.highest, values.minus
local max_event_times = {}

-- Return the max event time of each member, or false. policies: those under which the watermarks were stored.
function max_event_times.of(members, policies)
  policies = policies or state.config.policies
  local found = bulk.zmscore(key.max_event_times, members)
  local lagging, places = {}, {}
  for i, member in ipairs(members) do
    if not found[i] and policy.constant_lag(policy.among(policies, member)) then
      lagging[#lagging + 1], places[#places + 1] = member, i
    end
    found[i] = number(found[i]) or false
  end
  for at, watermark in ipairs(#lagging > 0 and bulk.zmscore(key.active, lagging) or {}) do
    watermark = number(watermark)
    found[places[at]] = watermark and watermark + policy.constant_lag(policy.among(policies, lagging[at])) or false
  end
  return found
end

function max_event_times.of_one(member)
  return max_event_times.of({member})[1] or nil
end

-- Store max event times (false: none). Call this after the watermarks of active members were stored.
function max_event_times.store(members, column)
  local watermarks, scored, removed = bulk.zmscore(key.active, members), {}, {}
  for i, member in ipairs(members) do
    local lag, watermark = policy.constant_lag(policy.of(member)), number(watermarks[i])
    if column[i] == (lag and watermark and watermark + lag or false) then
      removed[#removed + 1] = member
    else
      scored[#scored + 1], scored[#scored + 2] = values.score(column[i] or nil), member
    end
  end
  bulk.zadd(key.max_event_times, nil, scored)
  bulk.zrem(key.max_event_times, removed)
end

-- Return the members under a constant lag that have an entry, or whose watermarks are out of range, and their max event
-- times after events at these times. Pass these columns to store().
function max_event_times.exceptions(members, times, is_out_of_range)
  local exceptions, latest = {}, {}
  if not is_out_of_range and redis.call('EXISTS', key.max_event_times) == 0 then return exceptions, latest end
  for i, entry in ipairs(bulk.zmscore(key.max_event_times, members)) do
    if entry or not minus(times[i], policy.constant_lag(policy.of(members[i]))) then
      exceptions[#exceptions + 1], latest[#latest + 1] = members[i], times[i]
    end
  end
  for i, before in ipairs(max_event_times.of(exceptions)) do latest[i] = highest(latest[i], before or nil) end
  return exceptions, latest
end

return max_event_times
end)()
local idleness = (function()
-- Idleness: silent substreams do not hold the merged watermark. See tidegate.domain.idleness.
local number, score, highest = values.number, values.score, values.highest
local job, config = state.job, state.config
local idleness = {}
local MAX_MADE_IDLE = 500  -- in one function call

-- Remove members from the merge and keep their watermarks; return those that follow the clock.
local function freeze_flat(members)
  local flat, clock_driven_ones = policy.by_kind(members)
  local event_times = max_event_times.of(flat)
  bulk.zadd_each(key.frozen, bulk.zmscore(key.active, flat), flat)
  bulk.zrem(key.active, flat)
  max_event_times.store(flat, event_times)
  return clock_driven_ones
end

local function freeze_clock_driven(members)
  if #members > 0 then bulk.zadd_each(key.frozen, advancing.freeze(members), members) end
end

-- Remove members from the merge for good. Their watermarks stay constant.
function idleness.freeze(members)
  freeze_clock_driven(freeze_flat(members))
end

-- Make active members of a query idle. last_events: their last events. Return whether any member follows the clock.
function idleness.set_idle(query, members, last_events)
  local clock_driven_ones = freeze_flat(members)
  if config.freezes_idle then freeze_clock_driven(clock_driven_ones) else advancing.make_idle(clock_driven_ones) end
  bulk.zadd_each(key.idle(query), last_events, members)
  bulk.zrem(key.last_events(query), members)
  bulk.zadd_all(key.since, job.now, members)
  return #clock_driven_ones > 0
end

-- Make members of a query idle whose last event is at or before `until_`. forced: the reason is not silence. Return
-- whether any member follows the clock, and whether members remain for the next function call.
local function make_idle(query, until_, limit, forced)
  local room = MAX_MADE_IDLE - state.changes.made_idle
  local found = redis.call('ZRANGE', key.last_events(query), '-inf', until_, 'BYSCORE', 'LIMIT', 0, room + 1,
    'WITHSCORES')
  local members, last_events = {}, {}
  for i = 1, math.min(#found, 2 * room), 2 do
    members[#members + 1], last_events[#last_events + 1] = found[i], found[i + 1]
  end
  local remain = #found > 2 * room
  if remain then state.changes.is_unfinished = true end
  if #members == 0 then return false, remain end
  state.changes.made_idle = state.changes.made_idle + #members
  local has_left = idleness.set_idle(query, members, last_events)
  if forced then bulk.zadd_all(key.forced_idle, 0, members) end
  journal.count_limit(limit)
  journal.write_substreams('idle', query, members, 'limit', limit)
  return has_left, remain
end

-- Make substreams of a query idle that are silent by its idle clock. The next evaluation continues if some remain.
function idleness.expire(query, idle_clock)
  if not config.idle_timeout_ms or not idle_clock or job.is_complete then return false end
  local has_left, remain = make_idle(query, idle_clock - config.idle_timeout_ms, 'idle_timeout_ms', false)
  if remain and query ~= '' then
    job.expiring = job.expiring or {}
    job.expiring[query] = true
  end
  return has_left
end

-- Continue what earlier calls of expire() have left.
function idleness.expire_remaining()
  local unfinished, has_left = job.expiring or {}, false
  job.expiring = nil
  for query in pairs(unfinished) do has_left = idleness.expire(query, queries.get(query).idle_clock) or has_left end
  return has_left
end

-- Make all substreams of a query idle after query_timeout_ms without a call.
function idleness.time_out_queries()
  if not config.query_timeout_ms then return false end
  local has_left, last = false, job.observed_now - config.query_timeout_ms
  for _, query in ipairs(redis.call('ZRANGE', key.last_seen, '-inf', last, 'BYSCORE')) do
    local left, remain = make_idle(query, math.huge, 'query_timeout_ms', true)
    has_left = left or has_left
    if not remain then redis.call('ZREM', key.last_seen, query) end
  end
  return has_left
end

-- Make idle members active, with their stored watermarks. under_new_lag: raise each watermark to max event time - lag,
-- because the lag may have changed.
function idleness.activate(query, members, under_new_lag)
  local idle, active, last_events = bulk.zmscore(key.idle(query), members), {}, {}
  for i, member in ipairs(members) do
    if idle[i] then
      active[#active + 1] = member
      last_events[#last_events + 1], last_events[#last_events + 2] = idle[i], member
    end
  end
  if #active == 0 then return active end
  local flat, clock_driven_ones = policy.by_kind(active)
  local watermarks, event_times = bulk.zmscore(key.frozen, flat), max_event_times.of(flat)
  local scored = {}
  for i, member in ipairs(flat) do
    local watermark, max_event_time = number(watermarks[i]), event_times[i]
    local lag = under_new_lag and max_event_time and policy.flat_lag(policy.of(member), member)
    if lag then watermark = highest(watermark, values.minus(max_event_time, lag)) end
    scored[#scored + 1], scored[#scored + 2] = score(watermark), member
  end
  bulk.zadd(key.active, nil, scored)
  max_event_times.store(flat, event_times)
  if #clock_driven_ones > 0 then advancing.make_active(clock_driven_ones) end
  bulk.zadd(key.last_events(query), nil, last_events)
  for _, name in ipairs({key.frozen, key.idle(query), key.forced_idle}) do bulk.zrem(name, active) end
  bulk.zadd_all(key.since, job.now, active)
  return active
end

-- Make those members active that were idle, because they have events. Return them.
function idleness.reactivate(query, members)
  if state.changes.is_plain or redis.call('EXISTS', key.idle(query)) == 0 then return {} end
  return idleness.activate(query, members, true)
end

-- Return the state of a member at an observed time of its query, and its last event in observed time.
function idleness.state_of(query, member, observed)
  local last_event = tonumber(redis.call('ZSCORE', key.last_events(query), member) or nil)
  if last_event then
    local is_silent = config.idle_timeout_ms and observed - last_event >= config.idle_timeout_ms
    return is_silent and 'blocked' or 'active', last_event
  end
  last_event = redis.call('ZSCORE', key.idle(query), member)
  if last_event then return 'idle', tonumber(last_event) end
  return 'done', tonumber(redis.call('ZSCORE', key.done, member))
end

return idleness
end)()
local membership = (function()
-- The members of a job. Each member is in exactly one of these sorted sets.
local config = state.config
local membership = {}

-- Return the sorted sets of the active members.
local function active_sets()
  if not config.has_clock_driven then return {key.active} end
  return {key.active, key.constant, key.advancing}
end

local function all_sets()
  local sets = active_sets()
  sets[#sets + 1] = key.frozen
  if config.has_clock_driven then sets[#sets + 1], sets[#sets + 2] = key.idle_constant, key.idle_advancing end
  return sets
end

local function size_of(sets)
  local size = 0
  for _, name in ipairs(sets) do size = size + redis.call('ZCARD', name) end
  return size
end

-- Return the number of members, with placeholders.
function membership.count()
  return size_of(all_sets())
end

function membership.count_active()
  return size_of(active_sets())
end

-- Return all members, unsorted.
function membership.all()
  local members = {}
  for _, name in ipairs(all_sets()) do
    for _, member in ipairs(redis.call('ZRANGE', name, 0, -1)) do members[#members + 1] = member end
  end
  return members
end

-- Return a column: true for each member that the job has, or else false.
function membership.known(members)
  local known, rest, places = {}, members, {}
  for i = 1, #members do known[i], places[i] = false, i end
  for _, name in ipairs(all_sets()) do
    local unknown, unknown_places = {}, {}
    for i, score in ipairs(bulk.zmscore(name, rest)) do
      local place = places[i]
      if score then
        known[place] = true
      else
        unknown[#unknown + 1], unknown_places[#unknown_places + 1] = rest[i], place
      end
    end
    if #unknown == 0 then break end
    rest, places = unknown, unknown_places
  end
  return known
end

-- Return the members that the job has, and the other members, both in order.
function membership.split(members)
  return bulk.split(members, membership.known(members))
end

return membership
end)()
local holds = (function()
-- Holds: instructions to keep C at or below a value.
local number = values.number
local holds = {}

-- Return the lowest hold, which limits C, and its value.
function holds.lowest()
  if state.changes.is_plain then return nil end
  return values.lowest_of(key.holds)
end

-- Return the lower of the watermark and the lowest hold.
function holds.cap(watermark)
  local _, at_most = holds.lowest()
  if at_most and watermark then return math.min(watermark, at_most) end
  return watermark
end

-- Return all holds, lowest first.
function holds.in_order()
  local found, unattended = {}, state.job.unattended
  for _, hold in ipairs(redis.call('ZRANGE', key.holds, 0, -1)) do
    local expires = number(redis.call('ZSCORE', key.hold_expiry, hold))
    found[#found + 1] = {map = {hold = hold, at_most = number(redis.call('ZSCORE', key.holds, hold)),
      expires_ms = expires and expires + unattended, reason = redis.call('HGET', key.hold_reasons, hold)}}
  end
  return found
end

function holds.remove(hold)
  redis.call('ZREM', key.holds, hold)
  redis.call('ZREM', key.hold_expiry, hold)
  redis.call('HDEL', key.hold_reasons, hold)
end

-- Remove expired holds.
function holds.expire()
  if state.changes.is_plain then return end
  for _, hold in ipairs(redis.call('ZRANGE', key.hold_expiry, '-inf', state.job.observed_now, 'BYSCORE')) do
    holds.remove(hold)
    journal.write('hold_expired', 'hold', hold)
  end
end

return holds
end)()
local frame = (function()
-- Frame boundaries, exact on doubles.
local config = state.config
local frame = {}

local function past_boundary(time)
  local slide = config.throttle.slide
  return values.modulo(values.modulo(time, slide) - config.throttle.offset_ms, slide)
end

-- Return the last boundary at or before a time; nil if that boundary is below the range of numbers.
function frame.floor(time)
  return values.minus(time, past_boundary(time))
end

-- Return the first boundary after a time.
function frame.higher(time)
  return math.min(time + (config.throttle.slide - past_boundary(time)), values.HIGHEST)
end

return frame
end)()
local throttle = (function()
-- Throttles: the rules that limit how often C moves.
local job, config = state.job, state.config
local throttle = {}

-- Return the watermark to which C may rise, at most the merged watermark; nil if C must not rise.
function throttle.candidate(merged)
  local kind = config.throttle.type
  if merged == nil or kind == 'none' then return merged end
  if kind == 'frame' then return frame.floor(merged) end
  local last = job.coalesced_watermark
  if last == nil or merged >= last + config.throttle.min_step_ms then return merged end
end

-- Return the watermark that completes an input with this max event time.
function throttle.end_after(max_event_time)
  if config.throttle.type == 'frame' then return frame.higher(max_event_time) end
  return math.min(max_event_time + 1, values.HIGHEST)
end

return throttle
end)()
local clock = (function()
-- The clock of a job, which never goes back. Observed time excludes outages: the time in which no coordinator ran.
--
-- Each command shows that a coordinator runs, and so does the sweeper of each coordinator (commands/attend). A gap between
-- two of them that is longer than args.unattended_after_ms is an outage of all jobs of the bucket.
local refuse = values.refuse
local job = state.job
local clock = {}
local ATTENDED_EACH_MS = 250  -- so that most commands do not write it

-- Return the processing time of this command: the time of the Redis server, unless a test sets one. Refuse a time after
-- args.latest_now_ms.
function clock.now()
  local now = args.now_ms
  if not now then
    local time = redis.call('TIME')
    now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
  end
  if args.latest_now_ms and now > args.latest_now_ms then refuse('clock_jumped', {now_ms = now}) end
  return now
end

-- Record that a coordinator runs, and return the total duration of the outages of the bucket. A read records nothing.
function clock.attend(now)
  local found = redis.call('HMGET', key.attendance, 'until', 'unattended')
  local attended, total = tonumber(found[1] or nil), tonumber(found[2] or 0)
  if not args.unattended_after_ms then return total end
  local gap = attended and now - attended or math.huge
  if attended and gap > args.unattended_after_ms then
    total = total + gap
    redis.call('HSET', key.attendance, 'until', now, 'unattended', total)
  elseif gap >= ATTENDED_EACH_MS then
    redis.call('HSET', key.attendance, 'until', now)
  end
  return total
end

-- Return the duration of the outages since the last command of the job.
local function outage_until(now)
  if args.now_ms then  -- a test, whose jobs have their own times: a gap between two commands of a job is an outage
    local gap = now - job.now
    local is_outage = args.unattended_after_ms and gap > args.unattended_after_ms and job.next_change
    return is_outage and gap or 0
  end
  local total = clock.attend(now)
  local outage = math.max(0, math.min(total - (job.outages or total), now - job.now))
  job.outages = total
  return outage
end

-- Advance the clock of the job. changes.outage: the duration of the outages that this command has detected.
function clock.advance(now)
  state.changes.clock = {now = job.now, observed_now = job.observed_now, unattended = job.unattended, outages = job.outages}
  local outage = outage_until(now)
  if outage > 0 then job.unattended, state.changes.outage = job.unattended + outage, outage end
  state.changes.previous_now = job.now
  job.now = math.max(now, job.now)
  job.observed_now = job.now - job.unattended
end

-- Read the live job of a command.
function clock.read()
  local found = state.read()
  if not found then refuse('job_not_found') end
  if found == 'deleted' then refuse('job_deleted') end
end

-- Load the live job of a command and advance its clock.
function clock.load()
  clock.read()
  clock.advance(clock.now())
end

-- Return the observed time of a query, and the duration of its outages. Reports without batches ('') use the observed
-- time and the outages of the job. A late report of an outage does not move the time back.
function clock.observed_time(query)
  if query == '' then return job.observed_now, job.unattended end
  local of = queries.get(query)
  return math.max(job.now - of.outage, of.idle_clock or -math.huge), of.outage
end

-- Record how long the current run of a query has waited for the coordinator.
function clock.add_outage(query, waited)
  query.outage = query.outage + math.max(0, waited - query.waited)
  query.waited = math.max(waited, query.waited)
end

-- Record that a query has processed all input up to a processing time.
function clock.observe_until(query, time)
  query.idle_clock = values.highest(time - query.outage, query.idle_clock)
end

return clock
end)()
local emission = (function()
-- Emission: the watermark W that clients receive, and its holder. See tidegate.domain.emission.
local above = values.above
local job, config = state.job, state.config
local emission = {}

-- Raise C to a watermark; a lower watermark changes nothing.
function emission.advance(coalesced_watermark)
  if above(coalesced_watermark, job.coalesced_watermark) then
    job.coalesced_watermark, job.coalesced_watermark_since = coalesced_watermark, job.now
  end
end

-- Raise W and C to a watermark that is safe to emit or was emitted before.
function emission.raise_watermark(watermark)
  emission.advance(watermark)
  if above(watermark, job.watermark) then job.watermark, job.watermark_since = watermark, job.now end
end

-- Return the query whose open batch has the lowest pinned watermark, and that watermark.
local function lowest_pin()
  if state.changes.is_plain then return nil end
  return values.lowest_of(key.open_pins)
end

-- Raise W to the lower of C and the lowest pinned watermark of the open batches that are not released.
function emission.emit()
  local watermark = job.coalesced_watermark
  local query, pinned = lowest_pin()
  if query and above(watermark, pinned) then watermark = pinned end
  emission.raise_watermark(watermark)
end

-- Return the sorted sets of the active substreams, each with the number that turns a score into the watermark at the last
-- evaluation, by addition.
function emission.active_sets()
  if not config.has_clock_driven then return {{key.active, 0}} end
  return {{key.active, 0}, {key.constant, 0}, {key.advancing, job.evaluated or 0}}
end

-- Return the rank of the first member after a score (nil: -inf) and a member, in the order of a sorted set.
local function rank_after(name, score, member)
  local bound = score and values.text(score) or '-inf'
  local first, last = redis.call('ZCOUNT', name, '-inf', '(' .. bound), redis.call('ZCOUNT', name, '-inf', bound)
  while first < last do
    local middle = math.floor((first + last) / 2)
    local found = redis.call('ZRANGE', name, middle, middle)[1]
    if found == member or values.sorts_before(found, member) then first = middle + 1 else last = middle end
  end
  return first
end

-- Return the first members of each set with their watermarks (-inf: none), slowest first. after: a member and its
-- watermark, to return only later members; nil: from the start.
function emission.slowest_first(sets, limit, after)
  local rows = {}
  for _, set in ipairs(sets) do
    local score = after and after.watermark and after.watermark - set[2]
    local first = after and rank_after(set[1], score, after.member) or 0
    local found = redis.call('ZRANGE', set[1], first, first + limit - 1, 'WITHSCORES')
    for i = 1, #found, 2 do
      local value = values.number(found[i + 1])
      rows[#rows + 1] = {member = found[i],
        watermark = value and math.min(value + set[2], values.HIGHEST) or -math.huge}
    end
  end
  table.sort(rows, function(a, b)
    if a.watermark ~= b.watermark then return a.watermark < b.watermark end
    return values.sorts_before(a.member, b.member)
  end)
  return rows
end

-- Return the active substream with the lowest watermark, and that watermark at the last evaluation; nil if no substream
-- is active.
function emission.slowest()
  local member, watermark
  for _, set in ipairs(emission.active_sets()) do
    local other, value = values.lowest_of(set[1])
    if other then
      value = value and math.min(value + set[2], values.HIGHEST) or -math.huge
      if not member or value < watermark or (value == watermark and values.sorts_before(other, member)) then
        member, watermark = other, value
      end
    end
  end
  if watermark == -math.huge then watermark = nil end
  return member, watermark
end

-- Return the holder of W; nil if the job is complete or W has no holder.
function emission.held_by()
  local query, pinned = lowest_pin()
  local member, watermark = emission.slowest()
  if query and (not member or above(job.coalesced_watermark, pinned)) then
    local of = queries.get(query)
    return {reason = 'open_batch', query = query, batch_id = of.latest, since_ms = job.watermark_since,
      begun_ms = of.begun}
  end
  if job.is_complete then return nil end
  local since = job.coalesced_watermark_since
  local hold, at_most = holds.lowest()
  local furthest = job.max_watermark
  if member then furthest = watermark end
  if hold and above(furthest, at_most) then return {reason = 'hold', query = '', hold = hold, since_ms = since} end
  if not member then return nil end
  query = policy.query_of(member)
  local name = policy.name_of(member)
  if name == '' then return {reason = 'missing_query', query = query, since_ms = since} end
  local reason = 'slow'
  local observed, outage = clock.observed_time(query)
  local state_of, last_event = idleness.state_of(query, member, observed)
  if state_of == 'blocked' then
    reason = 'blocked'
  elseif not watermark and not values.number(redis.call('ZSCORE', key.max_event_times, member)) then
    reason = 'never_reported'
  end
  return {reason = reason, query = query, substream = name, since_ms = since, last_event_ms = last_event + outage}
end

-- Return tidegate.domain.results.WatermarkState, with additional members.
function emission.watermark_state(members)
  local found = members or {}
  local holder = state.changes.held_by or emission.held_by()
  found.incarnation, found.state_epoch, found.now_ms = job.incarnation, job.state_epoch, job.now
  found.watermark, found.coalesced_watermark = job.watermark, job.coalesced_watermark
  found.complete, found.held_by = job.is_complete and true, holder and {map = holder}
  return {map = found}
end

return emission
end)()
local merge = (function()
-- Merging: compute C from the watermarks of the substreams. See tidegate.domain.merge.
local highest, above = values.highest, values.above
local job, config = state.job, state.config
local merge = {}

-- Return the value that C would have without the throttle.
function merge.merged_watermark()
  return highest(job.merged_highest, job.coalesced_watermark)
end

-- Return the max watermark of max_retention_ms ago; nil if retention does not act.
local function retained(has_risen, is_sweep)
  if not config.max_retention_ms or not (is_sweep or has_risen) then return nil end
  local h = job.retention or history.start(config.max_retention_ms)
  local sampled = history.sample(h, job.observed_now, job.max_watermark)
  job.retention = h
  return is_sweep and sampled or nil
end

-- Merge the active substreams, and move C. cap: limit on watermarks that follow the clock. is_sweep: retention may
-- act. has_left: see advancing.evaluate. Return whether retention moved C.
function merge.merge(cap, is_sweep, has_left)
  local before, max_before = job.coalesced_watermark, job.max_watermark
  local lowest, is_unfinished = advancing.evaluate(cap or math.huge, has_left)
  job.evaluation_due = (is_unfinished or state.changes.is_unfinished) and 1 or nil
  local first, flat = values.lowest_of(key.active)
  if first then
    lowest = math.min(lowest, flat or -math.huge)
    local _, last = values.highest_of(key.active)
    job.max_watermark = highest(last, job.max_watermark)
  end
  local merged
  job.all_idle = lowest == math.huge and 1 or nil
  if job.all_idle then
    merged = job.max_watermark
  elseif lowest > -math.huge then
    merged = lowest
  end
  local offered = holds.cap(highest(retained(above(job.max_watermark, max_before), is_sweep), merged))
  emission.advance(throttle.candidate(offered))
  if above(offered, job.merged_highest) then
    job.merged_highest = offered
    if above(offered, before) and job.coalesced_watermark == before then job.throttled = (job.throttled or 0) + 1 end
  end
  return above(job.coalesced_watermark, before) and above(job.coalesced_watermark, merged)
end

return merge
end)()
local sketch = (function()
-- Sketches of delays, bit for bit as in tidegate.domain.sketch. A stored sketch is a packed list of step, position,
-- buckets and weights. Stored buckets are sorted, because sorting would slow a function that reads many sketches.
local config = state.config
local sketch = {}
local ROW, MAX_WEIGHT, MAX_BUCKETS = constants.ROW, constants.MAX_WEIGHT, constants.MAX_BUCKETS
local STEPS, HIGHEST_BUCKET, GAMMA = constants.STEPS, constants.HIGHEST_BUCKET, constants.GAMMA
local edges

-- Return the edges of the buckets, computed on first use.
function sketch.edges()
  if not edges then
    edges = {[0] = 0, 1}
    for bucket = 2, HIGHEST_BUCKET do edges[bucket] = edges[bucket - 1] * GAMMA end
  end
  return edges
end

function sketch.bucket_of(delay)
  if delay <= 0 then return 0 end
  local low, high = 0, HIGHEST_BUCKET
  while high - low > 1 do
    local middle = math.floor((low + high) / 2)
    if sketch.edges()[middle] < delay then low = middle else high = middle end
  end
  return high
end

function sketch.typical(bucket)
  return math.floor(sketch.edges()[bucket] * 2 / (GAMMA + 1) + 0.5)
end

function sketch.decayed(weight, steps)
  local halvings = math.floor(steps / STEPS)
  if halvings >= 60 then return 0 end
  return math.floor(math.floor(weight * constants.DECAY[steps - STEPS * halvings + 1]) * 2 ^ -halvings)
end

-- Return an eighth of the half-life.
function sketch.step()
  return math.max(1, math.floor(config.delay_half_life_ms / STEPS))
end

-- Return the number of whole steps in a time, exact on doubles.
function sketch.steps_in(time, step)
  local steps = (time - values.modulo(time, step)) / step
  local whole = math.floor(steps)
  return steps - whole < 0.5 and whole or whole + 1
end

function sketch.unpack(packed)
  if not packed then return {step = 0, position = 0, buckets = {}, weights = {}} end
  local kept = cmsgpack.unpack(packed)
  return {step = kept[1], position = kept[2], buckets = kept[3], weights = kept[4]}
end

function sketch.pack(s)
  return cmsgpack.pack({s.step, s.position, s.buckets, s.weights})
end

-- Decay to a max event time; return the number of steps.
function sketch.decay_to(s, max_event_time)
  local step = sketch.step()
  local position = sketch.steps_in(max_event_time, step)
  if step ~= s.step then
    s.step, s.position = step, position
    return 0
  end
  local steps = position - s.position
  if steps <= 0 then return 0 end
  s.position = position
  local buckets, weights = {}, {}
  for i, weight in ipairs(s.weights) do
    weight = sketch.decayed(weight, steps)
    if weight > 0 then buckets[#buckets + 1], weights[#weights + 1] = s.buckets[i], weight end
  end
  s.buckets, s.weights = buckets, weights
  return steps
end

-- Return the index of a bucket in a sorted list; for a missing bucket, the index at which it belongs.
local function place_of(buckets, bucket)
  local low, high = 1, #buckets + 1
  while low < high do
    local middle = math.floor((low + high) / 2)
    if buckets[middle] < bucket then low = middle + 1 else high = middle end
  end
  return low
end

-- Merge the lowest buckets beyond MAX_BUCKETS, except bucket 0, into the lowest kept bucket.
local function bound(s)
  local first = s.buckets[1] == 0 and 2 or 1
  local excess = #s.buckets - (first - 1) - MAX_BUCKETS
  if excess <= 0 then return end
  local buckets, weights = {}, {}
  if first == 2 then buckets[1], weights[1] = 0, s.weights[1] end
  for i = first + excess, #s.buckets do buckets[#buckets + 1], weights[#weights + 1] = s.buckets[i], s.weights[i] end
  for i = first, first + excess - 1 do weights[first] = math.min(weights[first] + s.weights[i], MAX_WEIGHT) end
  s.buckets, s.weights = buckets, weights
end

local function weight_of_rows(count)
  return math.min(count, MAX_WEIGHT / ROW) * ROW
end

-- Add rows by bucket.
function sketch.add(s, rows)
  local buckets, weights, new = s.buckets, s.weights, {}
  for bucket, count in pairs(rows) do
    local at = place_of(buckets, bucket)
    if buckets[at] == bucket then
      weights[at] = math.min(weights[at] + weight_of_rows(count), MAX_WEIGHT)
    elseif count > 0 then
      new[#new + 1] = bucket
    end
  end
  if #new == 0 then return end
  table.sort(new)
  local old, left = #buckets, #new
  for at = old + left, 1, -1 do
    if left == 0 then break end
    if old > 0 and buckets[old] > new[left] then
      buckets[at], weights[at] = buckets[old], weights[old]
      old = old - 1
    else
      buckets[at], weights[at] = new[left], weight_of_rows(rows[new[left]])
      left = left - 1
    end
  end
  bound(s)
end

function sketch.weight(s)
  local total = 0
  for _, weight in ipairs(s.weights) do total = total + weight end
  return total
end

-- Return the lowest whole lag with at most this weight above it.
function sketch.lag_for(s, beyond)
  local total = 0
  for i = #s.buckets, 1, -1 do
    total = total + s.weights[i]
    if total > beyond then return math.floor(sketch.edges()[s.buckets[i]]) end
  end
  return 0
end

-- Return a packed sketch as a reply.
function sketch.reply(packed)
  if not packed then return nil end
  local s = sketch.unpack(packed)
  return {map = {step = s.step, position = s.position, buckets = s.buckets, weights = s.weights}}
end

return sketch
end)()
local target_completeness = (function()
-- The lag learned from delays, with the same steps as tidegate.domain.policy.target_completeness.
local text = values.text
local target_completeness = {}
local ROW, ROWS_BEYOND = constants.ROW, constants.ROWS_BEYOND

-- Return the learned state of a member, or nil. relearning: the learned lag was discarded. rows: the number of recent
-- rows. late: the number of late rows among them. highest: the highest bucket of the late rows.
local function learned_of(member)
  local line = redis.call('HGET', key.learned_lags, member)
  if not line then return nil end
  local numbers = cjson.decode('[' .. line .. ']')
  return {lag = numbers[1], relearning = numbers[2] == 1, rows = numbers[3], late = numbers[4], highest = numbers[5]}
end

local function keep(member, learned)
  local numbers = {text(learned.lag), learned.relearning and '1' or '0', text(learned.rows), text(learned.late),
    text(learned.highest)}
  redis.call('HSET', key.learned_lags, member, table.concat(numbers, ','))
end

local function lag_of(rule, s)
  local beyond = sketch.weight(s) * rule.late_share / ROW
  beyond = math.floor(math.max(beyond - constants.MARGIN * math.sqrt(beyond), 0) * ROW)
  return policy.within(rule, sketch.lag_for(s, beyond))
end

local function wanted_lag(rule, own, pool)
  for _, s in ipairs({own, pool}) do
    if sketch.weight(s) >= rule.enough * ROW then return lag_of(rule, s) end
  end
end

local function is_surprised(rule, learned, lag, rows)
  for bucket, count in pairs(rows) do
    learned.rows = learned.rows + count
    if count > 0 and math.floor(sketch.edges()[bucket]) > lag then
      learned.late, learned.highest = learned.late + count, math.max(learned.highest, bucket)
    end
  end
  local expected = learned.rows * rule.late_share
  local may_widen = not rule.ceiling_ms or lag < rule.ceiling_ms
  local most = expected + constants.SURPRISE * math.sqrt(expected)
  if may_widen and learned.late >= ROWS_BEYOND and learned.late > most then return true end
  if learned.rows > 2 * rule.window then
    learned.rows, learned.late, learned.highest = math.floor(learned.rows / 2), math.floor(learned.late / 2), 0
  end
  return false
end

-- Return the new learned state of a member (nil: no lag learned yet), and whether the learned lag was discarded.
local function learn(rule, learned, rows, own, pool, steps)
  local lag = learned and policy.within(rule, learned.lag)
  if learned and is_surprised(rule, learned, lag, rows) then
    own.buckets, own.weights = {}, {}
    local longest = math.min(math.floor(sketch.edges()[learned.highest]),
      math.max(constants.MAX_WIDENING * lag, rule.cold_start_lag_ms))
    return {lag = policy.within(rule, math.max(lag, longest)), relearning = true, rows = 0, late = 0, highest = 0}, true
  end
  if learned and learned.relearning and learned.rows < rule.enough then return learned end
  local wanted = wanted_lag(rule, own, pool)
  if not wanted and learned and learned.relearning then wanted = lag_of(rule, own) end
  if not wanted then return learned end
  learned = learned or {rows = 0, late = 0, highest = 0}
  if not lag or learned.relearning or wanted > lag then
    learned.lag, learned.relearning = wanted, false
    return learned
  end
  for _ = 1, math.min(steps, constants.MAX_STEPS) do lag = lag - math.ceil((lag - wanted) / constants.NARROWING) end
  learned.lag = lag
  return learned
end

-- Move the lag of a member, and return whether the learned lag was discarded. The evaluation raises the watermark.
function target_completeness.learn(member, max_event_time, rows, own, pool, steps)
  local rule = policy.of(member)
  local learned, discarded = learn(rule, learned_of(member), rows, own, pool, steps)
  if learned then
    keep(member, learned)
    state.changes.raised[member] = values.score(values.minus(max_event_time, policy.within(rule, learned.lag)))
  end
  return discarded or false
end

-- Raise the watermarks of the active members whose lags have moved in this command. A member that has become idle in
-- the same evaluation keeps its watermark.
function target_completeness.raise()
  for member, watermark in pairs(state.changes.raised) do
    redis.call('ZADD', key.active, 'XX', 'GT', watermark, member)
  end
end

return target_completeness
end)()
local delays = (function()
-- The delays of rows, and the latency in addition to the lag. See tidegate.domain.delays.
local number = values.number
local job = state.job
local delays = {}

-- Return the members that have rows, and their rows by bucket. A member may occur several times. The columns are lists
-- of alternating buckets and rows.
local function rows_of(members, columns)
  local names, rows = {}, {}
  for i, member in ipairs(members) do
    local pairs_ = columns[i]
    if #pairs_ > 0 then
      if not rows[member] then rows[member], names[#names + 1] = {}, member end
      for at = 1, #pairs_, 2 do rows[member][pairs_[at]] = (rows[member][pairs_[at]] or 0) + pairs_[at + 1] end
    end
  end
  return names, rows
end

-- Return the members that have a max event time and are not done, and their max event times.
local function known_of(names)
  local event_times, done = max_event_times.of(names), bulk.zmscore(key.done, names)
  local known, known_times = {}, {}
  for i, member in ipairs(names) do
    if event_times[i] and not done[i] then
      known[#known + 1], known_times[#known + 1] = member, event_times[i]
    end
  end
  return known, known_times
end

-- Return the distance of each member's watermark above the merged watermark: -1 if there is no merged watermark, false
-- if the member has no lag.
local function ahead_of(known, known_times, merged)
  local lags, ahead = policy.lags_of(known), {}
  local active, frozen = bulk.zmscore(key.active, known), bulk.zmscore(key.frozen, known)
  for i, member in ipairs(known) do
    local own = not policy.of(member).limit and number(active[i] or frozen[i])
    if lags[i] and not own then own = known_times[i] - lags[i] end
    ahead[i] = lags[i] and (merged and math.max(own - merged, 0) or -1)
  end
  return ahead
end

-- Add the delays of rows to those of the job in the record of the command. The columns have a list of members with rows,
-- and a list of buckets and rows for each. merged: C without the throttle, when the batch began or before the report.
local function pool(record, members, columns, merged)
  if #members == 0 then return end
  local names, rows = rows_of(members, columns)
  local known, known_times = known_of(names)
  if #known == 0 then return end
  local ahead = ahead_of(known, known_times, merged)
  record.pooled, record.behind_merged = record.pooled or {}, record.behind_merged or {}
  local pooled, behind_merged = record.pooled, record.behind_merged
  for i, member in ipairs(known) do
    for bucket, count in pairs(rows[member]) do
      pooled[bucket] = (pooled[bucket] or 0) + count
      if ahead[i] then
        local behind = bucket > 0 and ahead[i] >= 0 and sketch.bucket_of(sketch.typical(bucket) - ahead[i]) or 0
        behind_merged[behind] = (behind_merged[behind] or 0) + count
      end
    end
  end
end

local function store_pools(record)
  for field, together in pairs({pool = record.pooled, merged = record.behind_merged}) do
    local s = sketch.unpack(redis.call('HGET', key.delays, field))
    sketch.decay_to(s, job.max_event_time)
    sketch.add(s, together)
    redis.call('HSET', key.delays, field, sketch.pack(s))
  end
end

-- Add the delays of rows to those of the members, and update learned lags. Return the members that discarded their lags.
local function learn(members, columns)
  local names, rows = rows_of(members, columns)
  local known, known_times = known_of(names)
  local pooled, relearning = sketch.unpack(redis.call('HGET', key.delays, 'pool')), {}
  for i, member in ipairs(known) do
    local own = sketch.unpack(redis.call('HGET', key.delays, member))
    local decayed = sketch.decay_to(own, known_times[i])
    sketch.add(own, rows[member])
    if policy.is_target(policy.of(member))
      and target_completeness.learn(member, known_times[i], rows[member], own, pooled, decayed) then
      relearning[#relearning + 1] = member
    end
    redis.call('HSET', key.delays, member, sketch.pack(own))
  end
  return relearning
end

-- Return the phases (see parts/steps) that add the delays in the pieces of a command of a query. each(record, visit) visits
-- the pieces. merged(): see pool().
function delays.phases(query, each, merged)
  return function(record)
    local limit = merged()
    local remain = each(record, function(piece) pool(record, piece.delayed or {}, piece.delays, limit) end)
    if not remain and record.pooled then store_pools(record) end
    return remain
  end, function(record)
    if not record.pooled then return false end
    record.relearning = record.relearning or journal.summary()
    local remain = each(record, function(piece) journal.add(record.relearning, learn(piece.delayed, piece.delays)) end)
    if not remain then journal.write_substreams('relearning', query, record.relearning) end
    return remain
  end
end

-- Add the latency of the event times in (before, C] to the statistics.
function delays.count_wait(before)
  local after = job.coalesced_watermark
  if not before or not after or after <= before or not job.max_event_time then return end
  local member = emission.slowest()
  local lag = member and policy.lags_of({member})[1]
  if not lag then return end
  local step = sketch.step()
  local steps = sketch.steps_in(after, step) - sketch.steps_in(before, step)
  local remaining = sketch.decayed(job.wait_weight or 0, steps)
  local weight = math.min(after - before, constants.MAX_WEIGHT - remaining)
  local middle = before + (after - before + state.config.throttle.slide) / 2
  local share = job.wait_weight and job.wait_weight > 0 and remaining / job.wait_weight or 0
  job.wait_sum = (job.wait_sum or 0) * share + (job.max_event_time - lag - middle) * weight
  job.wait_weight = remaining + weight
end

return delays
end)()
local evaluate = (function()
-- The evaluation: decide which substreams count, merge their watermarks, throttle, emit. See tidegate.domain.evaluate.
-- To bound the time of a function call, an evaluation applies a limited number of pending changes. The others are due
-- immediately; until then, the substreams that they concern hold C.
local text, above = values.text, values.above
local job, config = state.job, state.config
local evaluate = {}

-- Stop open batches from holding W after max_batch_hold_ms.
local function release_overdue()
  if not config.max_batch_hold_ms then return end
  local last = job.observed_now - config.max_batch_hold_ms
  for _, query in ipairs(redis.call('ZRANGE', key.open_batches, '-inf', last, 'BYSCORE')) do
    redis.call('ZADD', key.open_batches, '+inf', query)
    redis.call('ZREM', key.open_pins, query)
    journal.count_limit('max_batch_hold_ms')
    queries.get(query).released = true
    journal.write('batch_released', 'query', query, 'batch_id', queries.get(query).latest)
  end
end

-- Record that a limit let C pass members of these sets.
local function record_limit(limit, sets)
  local count, names = 0, {}
  for _, set in ipairs(sets) do
    count = count + redis.call('ZCOUNT', set[1], '-inf', '(' .. text(job.coalesced_watermark - set[2]))
  end
  if count == 0 then return end
  local rows = emission.slowest_first(sets, constants.NAMES_KEPT)
  for i = 1, math.min(count, constants.NAMES_KEPT) do names[i] = rows[i].member end
  journal.count_limit(limit)
  local passed = state.changes.passed
  passed[#passed + 1] = {limit = limit, count = count, substreams = names}
end

local function record_limits(is_retained)
  if is_retained then record_limit('max_retention_ms', emission.active_sets()) end
  if not config.has_clock_driven then return end
  for _, limit in ipairs(constants.POLICY_LIMITS) do record_limit(limit, {{key.lagged(limit), 0}}) end
end

local function record_all_idle(was_all_idle)
  if job.all_idle == was_all_idle then return end
  if was_all_idle then
    journal.write('not_all_idle')
  elseif membership.count() == 0
    or redis.call('ZCARD', key.frozen) + redis.call('ZCARD', key.idle_lagged) > redis.call('ZCARD', key.done) then
    journal.write('all_idle')
  end
end

-- Let the limits act that exclude substreams, batches and holds. Return whether a substream that follows the clock
-- became idle.
function evaluate.exclude()
  holds.expire()
  local has_left = idleness.time_out_queries()
  has_left = idleness.expire_remaining() or has_left
  has_left = idleness.expire('', job.observed_now) or has_left
  target_completeness.raise()
  release_overdue()
  return has_left
end

local function run(cap, is_sweep, has_left)
  if job.is_complete then return end
  has_left = evaluate.exclude() or has_left
  local before, was_all_idle = job.coalesced_watermark, job.all_idle
  local is_retained = merge.merge(cap, is_sweep, has_left)
  if above(job.coalesced_watermark, before) then record_limits(is_retained) end
  record_all_idle(was_all_idle)
  emission.emit()
  delays.count_wait(before)
end

-- Evaluate the job after a change. has_left: a substream that follows the clock became idle in this command.
function evaluate.evaluate(has_left)
  run(nil, false, has_left)
end

-- Evaluate the job after a report without a batch. cap: the lowest event time of the report.
function evaluate.after_report(cap)
  run(cap, false)
end

-- Evaluate the job because time has passed. Retention acts in sweeps only.
function evaluate.sweep()
  run(nil, true)
end

-- Evaluate the job before a read. An empty job has nothing to evaluate, and a read of it records nothing.
function evaluate.sweep_for_read()
  if job.all_idle or membership.count() > 0 then run(nil, true) end
end

return evaluate
end)()
local schedule = (function()
-- The next sweep of a job, at the time from which the job may change without new data. key.sweeps contains the jobs;
-- the score of a job is the time of its next sweep.
local lowest_of, above = values.lowest_of, values.above
local job, config = state.job, state.config
local schedule = {}

local function would_be_emitted(watermark)
  return watermark and above(throttle.candidate(holds.cap(watermark)), job.coalesced_watermark)
end

local function clock_driven_changes(changes)
  local member, change = lowest_of(key.next_change)
  if member then changes[#changes + 1] = math.max(change or job.observed_now, job.observed_now) end
  if redis.call('EXISTS', key.advancing, key.idle_advancing) > 0 then changes[#changes + 1] = job.observed_now + 1 end
  -- The clock advances during an outage, so substreams that follow the clock are due after the outage.
  local after_outage = job.unattended_at_evaluation and job.unattended_at_evaluation ~= job.unattended
  if after_outage and redis.call('EXISTS', key.constant, key.advancing, key.idle_lagged) > 0 then
    changes[#changes + 1] = job.observed_now
  end
end

local function retention_change()
  if not job.retention then return would_be_emitted(job.max_watermark) and job.observed_now or nil end
  if would_be_emitted(job.retention.cells[1]) then return job.observed_now end
  return history.next_change(job.retention, would_be_emitted)
end

-- Add the time of the first member of a set, plus a limit, to the changes. Add nothing if the limit is off.
local function add_first(changes, name, limit)
  if not limit then return end
  local member, time = lowest_of(name)
  if member and time < math.huge then changes[#changes + 1] = time + limit end
end

-- Return the observed time from which an evaluation may change the job; nil if only new data can change it.
function schedule.next_change()
  if job.is_complete then return nil end
  if job.evaluation_due then return job.observed_now end
  local changes = {}
  add_first(changes, key.last_events(''), config.idle_timeout_ms)
  add_first(changes, key.last_seen, config.query_timeout_ms)
  add_first(changes, key.open_batches, config.max_batch_hold_ms)
  if not state.changes.is_plain then add_first(changes, key.hold_expiry, 0) end
  if config.has_clock_driven then clock_driven_changes(changes) end
  if config.max_retention_ms then changes[#changes + 1] = retention_change() end
  if #changes == 0 then return nil end
  return math.min(unpack(changes))
end

-- Make the job due for a sweep.
function schedule.sweep_now()
  if args.now_ms then return end
  redis.call('ZADD', key.sweeps, job.now, key.name)
  job.scheduled = job.now
end

-- Schedule the next sweep, at least args.sweep_interval_ms after this command. Otherwise, each coordinator would sweep a job
-- that follows the clock once per interval.
function schedule.update()
  job.next_change = schedule.next_change()
  if args.now_ms then return end
  if not job.next_change then
    if job.scheduled then redis.call('ZREM', key.sweeps, key.name) end
    job.scheduled = nil
    return
  end
  local due = math.max(job.next_change + job.unattended, job.now + (args.sweep_interval_ms or 0))
  if not job.scheduled or due < job.scheduled or job.scheduled <= job.now then
    redis.call('ZADD', key.sweeps, due, key.name)
    job.scheduled = due
  end
end

return schedule
end)()
local timeline = (function()
-- The timeline of a job: its watermark and holder at regular processing times. See tidegate.domain.timeline.
local text = values.text
local job = state.job
local INTERVALS, KEPT = constants.SAMPLE_INTERVALS_MS, constants.SAMPLES_KEPT
local SHORTEST = INTERVALS[1]  -- divides the others
local timeline = {}

local function start_of(interval, time)
  return time - values.modulo(time, interval)
end

-- Append a sample for each interval that has none yet. After its creation, an empty job has no samples. A sample is
-- '<time> <watermark> <reason> <query> <name>'.
function timeline.record(holder)
  local before = state.changes.previous_now
  if before and start_of(SHORTEST, before) == start_of(SHORTEST, job.now) then return end
  if before and not (holder or job.watermark) then return end
  holder = holder or {}
  local sample = table.concat({text(job.now), text(job.watermark), holder.reason or '', holder.query or '',
    holder.substream or holder.hold or ''}, ' ')
  for i, interval in ipairs(INTERVALS) do
    if not before or start_of(interval, before) ~= start_of(interval, job.now) then
      redis.call('RPUSH', key.timeline(interval), sample)
      redis.call('LTRIM', key.timeline(interval), -KEPT[i], -1)
    end
  end
end

return timeline
end)()
local reply = (function()
-- The first and the last step of every command that may change a job.
local job = state.job
local reply = {}

local function record_movement()
  local before, passed = state.changes.before, state.changes.passed
  if job.coalesced_watermark == before.coalesced_watermark and job.watermark == before.watermark then return end
  local kind = 'coalesced_watermark'
  if job.watermark ~= before.watermark then
    kind = 'emission'
    job.emissions = (job.emissions or 0) + 1
  end
  local holder = state.changes.held_by or {}
  journal.write(kind, 'coalesced_watermark', job.coalesced_watermark, 'watermark', job.watermark, 'held_by', holder.reason,
    'query', holder.query, 'substream', holder.substream, 'batch_id', holder.batch_id, 'hold', holder.hold,
    'limits', #passed > 0 and cjson.encode(passed) or nil)
end

-- Load the job of a command.
function reply.load()
  clock.load()
  reply.remember()
end

-- Store the current watermarks, so that finish() can record a movement.
function reply.remember()
  state.changes.before = {coalesced_watermark = job.coalesced_watermark, watermark = job.watermark}
end

-- Record the movement of the watermark, schedule the next sweep, and save the job. Return the watermark of the job with
-- additional members.
function reply.finish(members)
  local outage = state.changes.outage
  if outage then journal.write('unattended', 'unattended_ms', outage) end
  state.changes.held_by = emission.held_by()
  record_movement()
  timeline.record(state.changes.held_by)
  schedule.update()
  queries.save()
  state.save()
  if state.changes.is_recorded then journal.announce() end
  return emission.watermark_state(members)
end

return reply
end)()
local steps = (function()
-- Steps: a command that visits all substreams of a large job runs in several function calls, because Redis serves no
-- other client during a call. Until the last step, every other command of the job is refused with `job_busy`, so clients
-- see the job before or after the command, never in between. All steps run at the time of the first step, and each step
-- is stored with its effects, so any coordinator can run the next one.
--
-- A command with many substreams in its arguments also runs in steps. The coordinator stores their columns before the
-- command, in pieces of at most constants.PIECE entries, and a call visits one piece.
--
-- A command consists of phases. A phase visits at most constants.STEP members and returns true if members remain. It
-- returns a table to end the command with this reply. job.steps is the record of the phases: it has what they must
-- remember, id, command, phase, set and at (the place of the next member or piece).
local job = state.job
local steps = {}
local STEP = constants.STEP
local visited  -- number of members visited in this call

-- Store the record of an unfinished command. Return its id, with which steps.resume() continues.
local function suspend(record)
  if not record.id then
    local time = redis.call('TIME')
    record.id, record.command = time[1] .. '.' .. time[2], state.changes.command
    redis.call('HDEL', key.job, 'steps_reply')
    redis.call('HSET', key.job, 'steps_argument', state.changes.argument)
    if args.stored then
      redis.call('RENAME', key.pieces(args.stored), key.columns)
      redis.call('PERSIST', key.columns)
    end
  end
  local changes = state.changes
  record.changes = {before = changes.before, passed = changes.passed, outage = changes.outage,
    previous_now = changes.previous_now, is_recorded = changes.is_recorded, clock = changes.clock}
  job.steps = record
  schedule.sweep_now()  -- if this coordinator stops, the sweeper of another one continues
  queries.save()
  state.save()
  return {map = {steps = record.id}}
end

-- Store the reply, because the coordinator that sent the command may not be the one that ran the last step.
local function finish(record, result)
  if not record.id then
    if args.stored then redis.call('UNLINK', key.pieces(args.stored)) end
    return result
  end
  redis.call('HDEL', key.job, 'steps_argument')
  redis.call('UNLINK', key.columns)
  redis.call('HSET', key.job, 'steps_reply', cmsgpack.pack({record.id, result}))
  return result
end

-- End a command that a phase has refused before its first write. Raise all other errors, and job_busy, after which the
-- coordinator repeats the command.
local function refuse(record, reason)
  if type(reason) ~= 'table' or not reason.refused or reason.refused.steps then error(reason, 0) end
  if record.id then
    state.read()
    job.steps = nil
    -- Otherwise the next command would not see the time that has passed: a sample of the timeline, and an outage.
    for name, value in pairs(record.changes.clock or {}) do job[name] = value end
    state.save()
  end
  return finish(record, {map = reason.refused})
end

-- Run the phases of a command until its end, or until this call has visited enough members.
function steps.run(phases)
  -- Until a phase reads the job, its table is that of the previous command.
  local record = state.changes.is_step and job.steps or {phase = 1, set = 1, at = 0}
  visited = 0
  while true do
    job.steps = nil  -- the last phase stores the job without it
    local ok, result = pcall(phases[record.phase], record)
    if not ok then return refuse(record, result) end
    if type(result) == 'table' then return finish(record, result) end
    if not result then record.phase, record.set, record.at = record.phase + 1, 1, 0 end
    if visited >= STEP then return suspend(record) end
  end
end

-- Call visit(members, i) for the members of each sorted set, in order. A set is a key, or {key, from, to} for the members
-- with a score in this range. visit may return how many of its members have left the set or the range. Return whether
-- members remain.
function steps.each(record, sets, visit)
  while record.set <= #sets do
    local set, members = sets[record.set], nil
    if type(set) == 'table' then
      members = redis.call('ZRANGE', set[1], set[2], set[3], 'BYSCORE', 'LIMIT', record.at, STEP)
    else
      members = redis.call('ZRANGE', set, record.at, record.at + STEP - 1)
    end
    visited = visited + #members + 1
    record.at = record.at + #members - (#members > 0 and visit(members, record.set) or 0)
    if #members < STEP then record.set, record.at = record.set + 1, 0 end
    if visited >= STEP then return record.set <= #sets end
  end
  return false
end

-- Call visit(piece) for the next of the stored pieces in a range {first, count}. Without a range, the arguments are the
-- only piece. Return whether pieces remain.
function steps.pieces(record, range, visit)
  if not range then
    visit(args)
    return false
  end
  if range.count == 0 then return false end
  local stored = record.id and key.columns or key.pieces(args.stored)
  local packed = redis.call('HGET', stored, range.first + record.at)
  if not packed then values.refuse('steps_lost') end
  visit(cmsgpack.unpack(packed))
  visited, record.at = STEP, record.at + 1
  return record.at < range.count
end

-- Visit the pieces as steps.pieces() does. check(piece) returns members for which the command is refused, and refuse(members)
-- refuses it for those of all pieces.
function steps.check(record, range, check, refuse)
  local remain = steps.pieces(record, range, function(piece)
    for _, member in ipairs(check(piece)) do
      record.refused = record.refused or {}
      record.refused[#record.refused + 1] = member
    end
  end)
  if not remain and record.refused then refuse(record.refused) end
  return remain
end

-- Load the next step of an unfinished command and return its name; or return nil and the reply of the command, if it
-- has ended.
function steps.resume()
  state.changes.is_step = true
  local found, id = state.read(), args.steps
  if found == 'live' and job.steps and job.steps.id == id then
    local record = job.steps
    args = cmsgpack.unpack(redis.call('HGET', key.job, 'steps_argument'))
    for name, value in pairs(record.changes) do state.changes[name] = value end
    return record.command
  end
  local stored = redis.call('HGET', key.job, 'steps_reply')
  local ended = stored and cmsgpack.unpack(stored)
  if ended and ended[1] == id then return nil, ended[2] end
  values.refuse('steps_lost')
end

return steps
end)()
local observation = (function()
-- Observation: apply event times and reported watermarks to substreams. See tidegate.domain.observation.
-- Each column has one entry per member: a number or false.
local number, score, highest, minus = values.number, values.score, values.highest, values.minus
local job, config = state.job, state.config
local observation = {}

local function accepts_watermarks(member)
  return policy.of(member).accepts_watermarks
end

-- Return the members with a watermark but no event time whose policies do not accept watermarks.
local function without_event_time(members, event_times, watermarks)
  local missing = {}
  if not next(watermarks) then return missing end
  for i, member in ipairs(members) do
    if not number(event_times[i]) and number(watermarks[i]) and not accepts_watermarks(member) then
      missing[#missing + 1] = member
    end
  end
  return missing
end

function observation.refuse_watermarks(members)
  values.refuse('event_time_missing', {substreams = members})
end

-- Store in the record of a command for how many new members the job has room, unless `count` members fit in any case.
-- Members that open batches will add count towards the limit; placeholders do not count.
function observation.look_for_room(record, count)
  local limit = args.max_substreams
  if not limit then return end
  local size = membership.count()
  local open = state.changes.is_plain and {} or redis.call('ZRANGE', key.open_batches, 0, -1)
  for _, query in ipairs(open) do size = size + redis.call('SCARD', key.coming(query)) end
  if size + count > limit then record.room = limit - size + redis.call('SCARD', key.missing_queries) end
end

-- Count the members of a query that are new. refuse_if_full() refuses the command if the job has no room for them.
function observation.count_new(record, query, members)
  if not record.room then return end
  local known, coming = membership.known(members), bulk.smismember(key.coming(query), members)
  for i = 1, #members do
    if not known[i] and coming[i] == 0 then
      record.room = record.room - 1
      record.is_full = record.room < 0
    end
  end
end

function observation.refuse_if_full(record)
  if record.is_full then values.refuse('too_many_substreams', {limit = args.max_substreams}) end
end

-- Return a table in which members that the job has are true. Later steps of a command must not remove members.
function observation.known(members)
  local known, new = state.changes.known, {}
  for _, member in ipairs(members) do
    if not known[member] then new[#new + 1] = member end
  end
  for i, is_known in ipairs(membership.known(new)) do known[new[i]] = is_known end
  return known
end

-- Return the latest event time that is accepted; nil if max_future_skew_ms is off.
function observation.latest_event_time()
  if config.max_future_skew_ms then return math.min(job.now + config.max_future_skew_ms, values.HIGHEST) end
end

-- Add to the counters of known members only, because the number of unknown members is unbounded. A member occurs once.
function observation.count_rows(class, members, rows)
  local known, fields, amounts, n = observation.known(members), {}, {}, 0
  for i, member in ipairs(members) do
    if known[member] then
      n = n + 1
      fields[n], amounts[n] = class .. ' ' .. member, rows[i]
    end
  end
  bulk.add_each(key.rows, fields, amounts)
end

function observation.count_future(members, rows)
  observation.count_rows('future_rows', members, rows)
  for _, count in ipairs(rows) do bulk.add(key.job, 'future_rows', count) end
end

-- Return the columns of a report without the entries too far ahead of the clock, and the members of those entries.
local function split_future(report)
  local latest, future = observation.latest_event_time(), {}
  local event_times, watermarks, min_event_times = report.max_event_times, report.watermarks, report.min_event_times
  if not latest then return report, future end
  local kept = {members = {}, max_event_times = {}, watermarks = {}, min_event_times = {}}
  for i, member in ipairs(report.members) do
    if (number(event_times[i]) or latest) > latest or (number(watermarks[i]) or latest) > latest then
      future[#future + 1] = member
    else
      local at = #kept.members + 1
      kept.members[at], kept.max_event_times[at], kept.watermarks[at] = member, event_times[i], watermarks[i]
      kept.min_event_times[at] = min_event_times and min_event_times[i]
    end
  end
  return #future == 0 and report or kept, future
end

-- Return the members of a report (members, max_event_times, watermarks) whose event times are missing, and remember in the
-- record of the command which members have entries too far ahead of the clock.
function observation.check(record, report)
  local _, future = split_future(report)
  if #future > 0 then
    record.future = record.future or journal.summary()
    journal.add(record.future, future)
  end
  return without_event_time(report.members, report.max_event_times, report.watermarks)
end

-- Count and remove entries too far ahead of the clock; return the remaining columns.
function observation.set_aside_future(report)
  local kept, future = split_future(report)
  if #future == 0 then return kept end
  local ones = {}
  for i = 1, #future do ones[i] = 1 end
  observation.count_future(future, ones)
  return kept
end

-- Remove the placeholder of a query that now has a substream.
function observation.remove_placeholder(query)
  if redis.call('SREM', key.missing_queries, query) == 0 then return end
  local names = {key.active, key.frozen, key.forced_idle, key.last_events(query), key.idle(query)}
  for _, name in ipairs(names) do redis.call('ZREM', name, query .. '/') end
end

-- Add substreams without events.
function observation.add_substreams(query, members, observed)
  if query ~= '' then
    redis.call('SADD', key.query_names, query)
    observation.remove_placeholder(query)
  end
  bulk.srem(key.coming(query), members)
  local flat, clock_driven_ones = policy.by_kind(members)
  bulk.zadd_all(key.last_events(query), observed, members)
  bulk.zadd_all(key.active, '-inf', flat)
  for _, member in ipairs(clock_driven_ones) do advancing.observe(member) end
end

local function has_numbers_only(column, length)
  for i = 1, length do
    if type(column[i]) ~= 'number' then return false end
  end
  return true
end

-- Return the entries that have an effect. Entries of done substreams have no effect. A watermark has an effect if the
-- policy accepts watermarks and the watermark of the substream is lower.
local function effective(members, event_times, watermarks)
  local done, active, frozen = {}, {}, {}
  if not state.changes.is_plain and redis.call('EXISTS', key.done) == 1 then done = bulk.zmscore(key.done, members) end
  if not next(watermarks) and not next(done) and has_numbers_only(event_times, #members) then
    return members, event_times, {}
  end
  if next(watermarks) then active, frozen = bulk.zmscore(key.active, members), bulk.zmscore(key.frozen, members) end
  local names, times, reported, n = {}, {}, {}, 0
  for i, member in ipairs(members) do
    if not done[i] then
      local time, watermark = number(event_times[i]), number(watermarks[i])
      if watermark and not (accepts_watermarks(member) and values.above(watermark, number(active[i] or frozen[i]))) then
        watermark = nil
      end
      if time or watermark then
        n = n + 1
        names[n], times[n], reported[n] = member, time, watermark
      end
    end
  end
  return names, times, reported
end

-- Return the highest number of a column; nil if it has no number.
local function highest_of(column, length)
  local found
  for i = 1, length do
    local value = column[i]
    if value and (not found or value > found) then found = value end
  end
  return found
end

-- Split columns by policy. The groups have the columns names, times and watermarks.
local function by_policy(names, times, watermarks)
  if #config.policies == 1 then
    return {{rule = config.policies[1], names = names, times = times, watermarks = watermarks}}
  end
  local groups, of_rule = {}, {}
  for i, member in ipairs(names) do
    local rule = policy.of(member)
    local group = of_rule[rule]
    if not group then
      group = {rule = rule, names = {}, times = {}, watermarks = {}}
      of_rule[rule], groups[#groups + 1] = group, group
    end
    local at = #group.names + 1
    group.names[at], group.times[at], group.watermarks[at] = member, times[i], watermarks[i]
  end
  return groups
end

local function raise_max_event_times(names, times)
  local scored = {}
  for i, member in ipairs(names) do
    if times[i] then scored[#scored + 1], scored[#scored + 2] = times[i], member end
  end
  bulk.zadd(key.max_event_times, 'GT', scored)
end

local function observe_constant_lag(lag, names, times)
  local watermarks, is_out_of_range = {}, false
  for i, member in ipairs(names) do
    local watermark = times[i] - lag  -- values.minus and values.score without their calls
    if watermark < -values.HIGHEST then watermark, is_out_of_range = -math.huge, true end
    watermarks[2 * i - 1], watermarks[2 * i] = watermark, member
  end
  local exceptions, exception_times = max_event_times.exceptions(names, times, is_out_of_range)
  bulk.zadd(key.active, 'GT', watermarks)
  if #exceptions > 0 then max_event_times.store(exceptions, exception_times) end
end

local function observe_clock_driven(names, times)
  local lines, before = bulk.hmget(key.clock_driven, names), bulk.zmscore(key.max_event_times, names)
  for i, member in ipairs(names) do advancing.observe(member, lines[i], times[i], number(before[i])) end
  raise_max_event_times(names, times)
end

-- Apply event times under learned lags. A shorter lag also raises a watermark.
local function observe_targets(names, times)
  local before, lags, watermarks = bulk.zmscore(key.max_event_times, names), policy.lags_of(names), {}
  for i, member in ipairs(names) do
    watermarks[2 * i - 1], watermarks[2 * i] = score(minus(highest(times[i], number(before[i])), lags[i])), member
  end
  bulk.zadd(key.active, 'GT', watermarks)
  raise_max_event_times(names, times)
end

local function observe_reported(names, times, reported)
  local watermarks = {}
  for i, member in ipairs(names) do watermarks[2 * i - 1], watermarks[2 * i] = score(reported[i]), member end
  bulk.zadd(key.active, 'GT', watermarks)
  raise_max_event_times(names, times)
end

-- Record that the members that a report names are not silent, and make idle ones active. Entries with an effect are those
-- in `names`. Without one, a member stays idle if an operator made it idle. Return the members that became active.
local function keep_alive(query, named, names, observed)
  if #names == #named then return idleness.reactivate(query, names) end
  local has_effect, awake, scored = {}, {}, {}
  for _, member in ipairs(names) do has_effect[member] = true end
  for i, reason in ipairs(bulk.zmscore(key.forced_idle, named)) do
    local member = named[i]
    if has_effect[member] or not reason or tonumber(reason) == 0 then awake[#awake + 1] = member end
    scored[#scored + 1], scored[#scored + 2] = observed, member
  end
  local active = idleness.reactivate(query, awake)
  bulk.zadd(key.last_events(query), 'XX', scored)
  return active
end

-- Apply the columns of a report to the substreams of a query. observed: the observed time of the query. named: all members
-- that the report names, also those without values. Return the members whose entries had an effect, and the idle members
-- that became active.
function observation.observe(query, report, observed, named)
  local names, times, reported = effective(report.members, report.max_event_times, report.watermarks)
  local active = keep_alive(query, named or report.members, names, observed)
  if #names == 0 then return names, active end
  if query ~= '' then observation.remove_placeholder(query) end
  job.max_event_time = highest(highest_of(times, #names), job.max_event_time)
  for _, group in ipairs(by_policy(names, times, reported)) do
    local rule, lag = group.rule, policy.constant_lag(group.rule)
    if lag then
      observe_constant_lag(lag, group.names, group.times)
    elseif rule.limit then
      observe_clock_driven(group.names, group.times)
    elseif policy.is_target(rule) then
      observe_targets(group.names, group.times)
    else
      observe_reported(group.names, group.times, group.watermarks)
    end
  end
  bulk.zadd_all(key.last_events(query), observed, names)
  return names, active
end

return observation
end)()
local staging = (function()
-- Staging: the reports of open batches, which take effect when their batch commits. See tidegate.domain.staging.
--
-- The hash of a query contains a value for each report: its order and the packed report. The field is the digest of the
-- report, so that a repeated report replaces itself. A commit joins the reports. If they are large, the coordinator joins
-- them instead (join_reports in tidegate.store.pieces) and stores the result in pieces, because Redis would be blocked for too long.
local number = values.number
local staging = {}

-- Store a report: partition; members, event_times, watermarks; counted, rows, future_rows; delayed, delays (columns).
function staging.add(query, report)
  query.staged = query.staged + #report.counted + #report.delayed + 1
  local packed = cmsgpack.pack(report)
  redis.call('HSET', key.staged(query.name), redis.sha1hex(packed), cmsgpack.pack(query.staged) .. packed)
  local _, new = membership.split(report.members)
  bulk.sadd(key.coming(query.name), new)
end

-- Discard the reports of a query.
function staging.discard(query)
  query.staged = 0
  redis.call('UNLINK', key.staged(query.name), key.coming(query.name))
end

-- Return the version of the reports of a query, which the coordinator must join before the batch commits; nil if they are
-- small, or if the coordinator has joined them. A join of other reports must be repeated, even if these are small.
function staging.to_join(query)
  local version = query.begun_by .. ' ' .. query.latest .. ' ' .. query.staged
  if args.joined then return args.joined.version ~= version and version or nil end
  -- A member can have an entry in counted and in delayed.
  return query.staged > 2 * constants.ENTRIES and version or nil
end

-- Set values by partition and member; a later report of a partition replaces its values. Return the number of new values.
local function set_each(by_partition, partition, members, column)
  local of_partition, new = by_partition[partition] or {}, 0
  by_partition[partition] = of_partition
  for i, member in ipairs(members) do
    local value = column[i]
    if value then
      if not of_partition[member] then new = new + 1 end
      of_partition[member] = value
    end
  end
  return new
end

local function raise_each(highest, members, column)
  for i, member in ipairs(members) do
    local value = number(column[i])
    if value and not (highest[member] and highest[member] >= value) then highest[member] = value end
  end
end

-- Return the values of a table by partition and member as lists of members and values, for each partition.
local function columns_of(by_partition)
  local columns = {}
  for _, of_partition in pairs(by_partition) do
    local members, column = {}, {}
    for member, value in pairs(of_partition) do members[#members + 1], column[#column + 1] = member, value end
    columns[#columns + 1] = {members, column}
  end
  return columns
end

-- Join the reports of a query: members with their highest max_event_times and watermarks (columns, false: none); rows and
-- future_rows (for each partition, a list of members and a list of values), delayed and delays (columns, with a member for
-- each partition), and count (the number of values in rows).
local function join(query)
  local reports = redis.call('HVALS', key.staged(query))
  for i, packed in ipairs(reports) do
    local order, report = cmsgpack.unpack(packed)
    report.order, reports[i] = order, report
  end
  table.sort(reports, function(a, b) return a.order < b.order end)
  local joined = {members = {}, max_event_times = {}, watermarks = {}, delayed = {}, delays = {}, count = 0}
  local event_times, watermarks, is_listed, rows, future_rows, delays = {}, {}, {}, {}, {}, {}
  for _, report in ipairs(reports) do
    raise_each(event_times, report.members, report.event_times)
    raise_each(watermarks, report.members, report.watermarks)
    joined.count = joined.count + set_each(rows, report.partition, report.counted, report.rows)
    set_each(future_rows, report.partition, report.counted, report.future_rows)
    set_each(delays, report.partition, report.delayed, report.delays)
    for _, member in ipairs(report.counted) do
      if not is_listed[member] then
        is_listed[member], joined.members[#joined.members + 1] = true, member
      end
    end
  end
  for i, member in ipairs(joined.members) do
    joined.max_event_times[i], joined.watermarks[i] = event_times[member] or false, watermarks[member]
  end
  joined.rows, joined.future_rows = columns_of(rows), columns_of(future_rows)
  for _, of_partition in ipairs(columns_of(delays)) do
    for i, member in ipairs(of_partition[1]) do
      joined.delayed[#joined.delayed + 1], joined.delays[#joined.delays + 1] = member, of_partition[2][i]
    end
  end
  return joined
end

-- Return the joined reports of a query, if the coordinator has not joined them.
local function joined_here(query)
  local changes = state.changes
  if changes.joined_query ~= query.name then changes.joined_query, changes.joined = query.name, join(query.name) end
  return changes.joined
end

-- Return the number of row counts that are staged, one per partition and member.
function staging.count(query)
  return args.joined and args.joined.count or joined_here(query).count
end

-- Call visit(piece) for the pieces of the joined reports that have a column. Return whether pieces remain.
function staging.each(record, query, column, visit)
  if args.joined then return steps.pieces(record, args.joined[column], visit) end
  visit(joined_here(query))
  return false
end

return staging
end)()
local batches = (function()
-- Batches and runs: begin, pin, stage, commit, and the checks that reject older runs and other checkpoints. A run is a
-- record of query, query_id and run_id. See tidegate.domain.batches.
local refuse = values.refuse
local job = state.job
local batches = {}

-- Refuse a run that a newer run has replaced, or whose query was retired.
function batches.check_run(query, run)
  if not query.run_id then return end
  local is_fenced = redis.call('ZSCORE', key.fenced_runs(query.name), run.run_id)
  if query.retired and (is_fenced or run.run_id == query.run_id) then refuse('query_retired', {query = query.name}) end
  if is_fenced then refuse('query_fenced', {current_run_id = query.run_id}) end
end

-- Refuse a run while a batch of another checkpoint is open.
function batches.check_checkpoint(query, run)
  if query.run_id and run.query_id ~= query.query_id and query.open then
    refuse('checkpoint_conflict', {open_batch_id = query.latest, open_query_id = query.query_id})
  end
end

-- Return the query of a batch that this run has begun.
function batches.begun_query(run, batch_id)
  local query = queries.get(run.query)
  batches.check_run(query, run)
  local is_begun = query.latest and batch_id <= query.latest
  if not is_begun or run.query_id ~= query.query_id or run.run_id ~= query.begun_by then
    refuse('batch_not_begun', {query = run.query, batch_id = batch_id})
  end
  return query
end

-- Record a call of a query.
function batches.contact(query)
  query.last_contact = job.now
  redis.call('ZADD', key.last_seen, job.observed_now, query.name)
  job.last_contact = job.now
end

local function fence(query)
  local name = key.fenced_runs(query.name)
  local _, newest = values.highest_of(name)
  redis.call('ZADD', name, (newest or 0) + 1, query.run_id)
  redis.call('ZREMRANGEBYRANK', name, 0, -constants.PINNED_WATERMARKS_KEPT - 1)
  journal.write('fenced', 'query', query.name, 'run_id', query.run_id)
end

-- Make a run the current run of its query, and fence the previous run.
function batches.enter(query, run)
  redis.call('ZADD', key.queries, 'NX', job.now, query.name)
  redis.call('SADD', key.query_names, query.name)
  if not query.run_id then
    query.query_id, query.run_id = run.query_id, run.run_id
  elseif run.run_id ~= query.run_id then
    if query.run_id ~= '' then fence(query) end  -- '' if the query was retired before its first call
    query.run_id, query.waited = run.run_id, 0
  end
  query.retired = false
  batches.contact(query)
end

-- Move a query without an open batch to a checkpoint. If this is another checkpoint, delete the previous batches.
function batches.move_to(query, query_id)
  if query_id == query.query_id then return end
  redis.call('UNLINK', key.pinned_watermarks(query.name), key.pinned_batches(query.name))
  staging.discard(query)
  query.query_id, query.latest, query.open, query.begun = query_id, nil, false, nil
end

-- Let a run continue the latest batch; discard reports that another run staged.
function batches.take_over(query, run_id)
  if query.begun_by == run_id then return end
  staging.discard(query)
  query.begun_by = run_id
end

-- Open a batch and pin its watermark; delete all but the last `keep` pinned watermarks.
function batches.open_batch(query, batch_id, pinned, input_known_until, keep)
  local name = query.name
  query.latest, query.open, query.released = batch_id, true, false
  query.begun, query.begun_by, query.begun_merged = job.now, query.run_id, merge.merged_watermark()
  query.input_known_until = input_known_until
  redis.call('HSET', key.pinned_watermarks(name), batch_id, pinned or '')
  redis.call('ZADD', key.pinned_batches(name), batch_id, batch_id)
  redis.call('ZADD', key.open_pins, values.score(pinned), name)
  redis.call('ZADD', key.open_batches, job.observed_now, name)
  staging.discard(query)
  local old = redis.call('ZRANGE', key.pinned_batches(name), '-inf', batch_id - keep, 'BYSCORE')
  bulk.zrem(key.pinned_batches(name), old)
  bulk.hdel(key.pinned_watermarks(name), old)
end

-- Record that no batch of a query is open, and discard the staged reports.
local function close(query)
  redis.call('ZREM', key.open_pins, query.name)
  redis.call('ZREM', key.open_batches, query.name)
  query.open = false
  staging.discard(query)
end

-- Return phases (see parts/steps) that apply the staged reports of the open batch of a query and close it, if the record
-- has commits. record.has_left: whether a substream that follows the clock has become idle. The last phase is followed
-- by an evaluation.
function batches.commit_staged(name)
  local function each(column)
    return function(record, visit)
      return record.commits and staging.each(record, queries.get(name), column, visit) or false
    end
  end
  local measure, learn = delays.phases(name, each('delayed'), function() return queries.get(name).begun_merged end)
  local function observe(record)
    record.active = record.active or journal.summary()
    return each('members')(record, function(piece)
      local _, active = observation.observe(name, piece, (clock.observed_time(name)))
      journal.add(record.active, active)
    end)
  end
  local function count(record)
    return each('rows')(record, function(piece)
      for _, columns in ipairs(piece.rows) do observation.count_rows('reported_rows', unpack(columns)) end
      for _, columns in ipairs(piece.future_rows) do observation.count_future(unpack(columns)) end
    end)
  end
  local function end_batch(record)
    if not record.commits then return end
    journal.write_substreams('active', name, record.active)
    local query = queries.get(name)
    if query.input_known_until then clock.observe_until(query, query.input_known_until) end
    close(query)
    record.has_left = idleness.expire(name, query.idle_clock)
  end
  return measure, learn, observe, count, end_batch
end

-- Retire a query and undo the begin of its open batch. Another begin of the batch returns its pinned watermark.
function batches.give_up(query)
  if query.open then
    query.latest = query.latest > 0 and query.latest - 1 or nil
  end
  query.released, query.retired, query.begun = false, true, nil
  close(query)
end

return batches
end)()
local tokens = (function()
-- Watermark tokens: a client returns its latest token, which restores a watermark that the store has lost.
-- The coordinator verifies the token before the command, and replaces an invalid token with one of incarnation 0.
local job = state.job
local tokens = {}

function tokens.accept(token)
  if not token then return end
  local watermark = values.number(token.watermark)
  if token.incarnation < job.incarnation then
    redis.call('HINCRBY', key.job, 'tokens_ignored', 1)
    return
  end
  local was_lost = token.incarnation > job.incarnation or values.above(watermark, job.watermark)
  job.incarnation = token.incarnation
  emission.raise_watermark(watermark)
  if was_lost then journal.write('watermark_restored', 'watermark', watermark) end
end

return tokens
end)()
local ledger = (function()
-- Numbers of rows, updated rows and late rows by hour of event time. See tidegate.domain.ledger.
local ledger = {}

-- Delete the first hours while the job has too many hours or entries. Always keep the last hour. Only new entries can
-- exceed the limits.
function ledger.trim()
  local hours, sizes, entries = redis.call('ZRANGE', key.hours, 0, -1), {}, 0
  for i, hour in ipairs(hours) do
    local rows = key.hour_rows(hour)
    sizes[i] = redis.call('HLEN', rows) - 1 - redis.call('HEXISTS', rows, '?')
    entries = entries + sizes[i]
  end
  local first = 1
  while first < #hours and (#hours - first + 1 > constants.HOURS_KEPT or entries > constants.ENTRIES_KEPT) do
    redis.call('UNLINK', key.hour_rows(hours[first]), key.hour_late(hours[first]))
    redis.call('ZREM', key.hours, hours[first])
    entries = entries - sizes[first]
    first = first + 1
  end
end

-- Return the keys of an hour, and empty columns for the counters that a batch adds to.
local function columns_of(hour)
  local rows = key.hour_rows(hour)
  return {rows = rows, late = key.hour_late(hour), size = redis.call('HLEN', rows), members = {}, counts = {},
    late_fields = {}, late_counts = {}}
end

local function add_late(columns, field, count)
  local at = #columns.late_fields + 1
  columns.late_fields[at], columns.late_counts[at] = field, count
end

-- Add the rows of a batch by hour. of_job: rows of the job as texts, and unattributed rows, which have no substream.
-- hours: columns with an entry per member and hour: places (of the members), hours, rows; updated and late (empty: none).
-- Return whether an hour has a new entry.
function ledger.add(of_job, hours, members, disposition)
  if #of_job == 0 and #hours.places == 0 then return false end
  local latest, known, by_hour = observation.latest_event_time(), observation.known(members), {}
  local function add_hour(number)
    if latest and number * constants.HOUR > latest then return nil end
    by_hour[number] = by_hour[number] or columns_of(values.text(number))
    return by_hour[number]
  end
  for _, row in ipairs(of_job) do
    local columns = add_hour(row.hour)
    if columns then
      local hour = values.text(row.hour)
      redis.call('ZADD', key.hours, hour, hour)
      bulk.add(columns.rows, '', row.rows)
      if row.unattributed ~= '0' then bulk.add(columns.rows, '?', row.unattributed) end
      if row.updated ~= '0' then bulk.add(columns.late, 'updated ', row.updated) end
      if row.late ~= '0' then bulk.add(columns.late, disposition .. ' ', row.late) end
    end
  end
  for i, place in ipairs(hours.places) do
    local columns, member = add_hour(hours.hours[i]), members[place]
    if columns and known[member] then
      local updated, late = hours.updated[i] or 0, hours.late[i] or 0
      columns.members[#columns.members + 1], columns.counts[#columns.counts + 1] = member, hours.rows[i]
      if updated > 0 then add_late(columns, 'updated ' .. member, updated) end
      if late > 0 then add_late(columns, disposition .. ' ' .. member, late) end
    end
  end
  local is_larger = false
  for _, columns in pairs(by_hour) do
    bulk.add_each(columns.rows, columns.members, columns.counts)
    bulk.add_each(columns.late, columns.late_fields, columns.late_counts)
    is_larger = is_larger or redis.call('HLEN', columns.rows) > columns.size
  end
  return is_larger
end

return ledger
end)()
local substreams = (function()
-- Steps of the commands that change the set of substreams.
local job, config = state.job, state.config
local number, highest, above = values.number, values.highest, values.above
local substreams = {}

substreams.ROW_CLASSES = {'reported_rows', 'future_rows', 'on_time', 'updated', 'late', 'null_event_time', 'future',
  'diverted'}

-- Visit the pieces of a command with members.
function substreams.each(record, visit)
  return steps.pieces(record, args.stored and args.members, visit)
end

-- Refuse a command if one of its members is unknown. Return whether pieces remain.
function substreams.check_known(record, query)
  return steps.check(record, args.stored and args.members, function(piece)
    local _, unknown = membership.split(piece.members)
    return unknown
  end, function(unknown)
    values.refuse('substream_not_found', {query = query, substreams = unknown})
  end)
end

-- Remove known members of a query, in any state.
function substreams.forget(query, members)
  if #members == 0 then return end
  for _, name in ipairs({key.max_event_times, key.active, key.frozen, key.done, key.forced_idle, key.since,
    key.last_events(query), key.idle(query)}) do
    bulk.zrem(name, members)
  end
  advancing.remove(members)
  for _, name in ipairs({key.clock_driven, key.delays, key.learned_lags}) do bulk.hdel(name, members) end
  for _, class in ipairs(substreams.ROW_CLASSES) do
    local fields = {}
    for i, member in ipairs(members) do fields[i] = class .. ' ' .. member end
    bulk.hdel(key.rows, fields)
  end
end

-- Return the watermark of each member, or false.
local function watermarks_of(members)
  local active, frozen, driven, found = bulk.zmscore(key.active, members), bulk.zmscore(key.frozen, members), {}, {}
  for i, member in ipairs(members) do
    if active[i] or frozen[i] then
      found[i] = number(active[i] or frozen[i]) or false
    else
      driven[#driven + 1] = member
      found[i] = false
    end
  end
  for at, packed in ipairs(bulk.hmget(key.clock_driven, driven)) do
    if packed then
      driven[driven[at]] = clock_driven.own_watermark(clock_driven.read(packed), policy.of(driven[at]))
    end
  end
  for i, member in ipairs(members) do found[i] = found[i] or driven[member] or false end
  return found
end

-- Return the highest watermark and the highest max event time of members, and of two earlier results.
local function highest_of(members, watermark, event_time)
  for _, value in ipairs(watermarks_of(members)) do watermark = highest(value or nil, watermark) end
  for _, value in ipairs(max_event_times.of(members)) do event_time = highest(value or nil, event_time) end
  return watermark, event_time
end

-- Note the highest values of members in the record of a command that is going to remove them.
function substreams.note_removed(record, members)
  record.removed_watermark, record.removed_event_time =
    highest_of(members, record.removed_watermark, record.removed_event_time)
end

-- Let the maxima of the job be those of the remaining members, so that the removed ones never move it again. This is a
-- phase (see parts/steps).
function substreams.lower_maxima(record)
  local watermark, event_time = record.removed_watermark, record.removed_event_time
  local is_highest = watermark and not above(job.max_watermark, watermark)
  local is_latest = event_time and event_time == job.max_event_time
  if is_highest or is_latest then
    local sets = advancing.sets()
    sets[#sets + 1], sets[#sets + 2] = key.active, key.frozen
    local remain = steps.each(record, sets, function(members)
      record.left_watermark, record.left_event_time = highest_of(members, record.left_watermark, record.left_event_time)
    end)
    if remain then return true end
  end
  if is_latest then job.max_event_time = record.left_event_time end
  if is_highest then
    if above(job.max_watermark, record.left_watermark) then job.max_watermark = record.left_watermark end
    local latest = highest(job.max_watermark, job.coalesced_watermark)
    if above(job.merged_highest, latest) then job.merged_highest = latest end
  end
  -- A cell up to this watermark may be of a removed substream. Without the cell, retention acts later.
  for i, cell in ipairs(watermark and job.retention and job.retention.cells or {}) do
    if cell and cell <= watermark then job.retention.cells[i] = false end
  end
end

-- Return the members of a list that belong to a query.
function substreams.of_query(query, members)
  local own, prefix = {}, query .. '/'
  for _, member in ipairs(members) do
    if string.sub(member, 1, #prefix) == prefix then own[#own + 1] = member end
  end
  return own
end

-- Return the queries with per-query keys, '' (reports without batches) first. The list may be too long for unpack.
function substreams.query_names()
  local names = redis.call('SMEMBERS', key.query_names)
  table.sort(names, values.sorts_before)
  table.insert(names, 1, '')
  return names
end

local function remove_unexpected()
  local expected = {}
  for _, query in ipairs(config.expected_queries) do expected[query] = true end
  for _, query in ipairs(redis.call('SMEMBERS', key.missing_queries)) do
    if not expected[query] then
      observation.remove_placeholder(query)
      if not queries.get(query).run_id then redis.call('ZREM', key.last_seen, query) end
    end
  end
end

-- Add a placeholder for each expected query without substreams, and remove all other placeholders. has_done: the queries
-- with done substreams, as names of true fields.
function substreams.expect_queries(has_done)
  remove_unexpected()
  for _, query in ipairs(config.expected_queries) do
    local is_known = has_done[query] or redis.call('EXISTS', key.last_events(query), key.idle(query)) > 0
    if not is_known and not queries.get(query).retired then
      local placeholder = query .. '/'
      redis.call('SADD', key.missing_queries, query)
      redis.call('SADD', key.query_names, query)
      redis.call('ZADD', key.active, '-inf', placeholder)
      redis.call('ZADD', key.last_events(query), (clock.observed_time(query)), placeholder)
      redis.call('ZADD', key.last_seen, 'NX', job.observed_now, query)
    end
  end
end

return substreams
end)()
local removal = (function()
-- Remove all keys of a job, except its hash, its journal and its timeline.
local removal = {}

function removal.remove_all()
  for _, hour in ipairs(redis.call('ZRANGE', key.hours, 0, -1)) do
    redis.call('UNLINK', key.hour_rows(hour), key.hour_late(hour))
  end
  for _, query in ipairs(substreams.query_names()) do
    for _, name in ipairs(key.of_query) do redis.call('UNLINK', key[name](query)) end
  end
  queries.forget()
  for _, limit in ipairs(constants.POLICY_LIMITS) do redis.call('UNLINK', key.lagged(limit)) end
  for _, name in ipairs(key.of_job) do redis.call('UNLINK', key[name]) end
end

return removal
end)()
local commands = {}
commands.begin = function()
-- Open a batch and pin its watermark, or return the pinned watermark of a batch that has already begun. The begin
-- of a later batch commits the open batch, because Spark begins batch N only after batch N - 1 has returned. If the open
-- batch is large, this runs in steps (see parts/steps).
--
-- args   token, run, batch_id, known (whether the client has a pinned watermark), pinned_watermark, keep, waited_ms,
--        input_age_ms (absent: unknown),
--        joined (absent: see parts/staging): version, and ranges of pieces
-- reply  pinned_watermark, replayed, joined, latest_event_time, previous_batch_id, previous_open, revision; or join: the
--        version of the reports of the open batch, which the coordinator must join
-- errors query_fenced, query_retired, checkpoint_conflict, batch_forgotten, pinned_watermark_conflict, job_complete
local job, number = state.job, values.number
local run, batch_id = args.run, args.batch_id

local function finish(pinned, replayed, joined, previous, was_open)
  return reply.finish({pinned_watermark = pinned, replayed = replayed, joined = joined,
    latest_event_time = observation.latest_event_time(), previous_batch_id = previous, previous_open = was_open,
    revision = job.revision})
end

-- Return whether an unexpected query joins a job that has a watermark.
local function joins(query)
  local is_new = not query.run_id
    or (query.retired and redis.call('EXISTS', key.last_events(query.name), key.idle(query.name)) == 0)
  if not is_new or job.coalesced_watermark == nil then return false end
  for _, expected in ipairs(state.config.expected_queries) do
    if expected == query.name then return false end
  end
  journal.write('joined', 'query', query.name)
  return true
end

-- Begin again a batch that the query has begun before.
local function replay(query, pinned, previous, was_open)
  if batch_id == query.latest then
    batches.take_over(query, run.run_id)
    -- The answer to the first begin may have been lost, and with it the evidence of a lost commit.
    if query.open then previous, was_open = query.previous, query.previous_open or false end
  end
  return finish(pinned, true, false, previous, was_open)
end

local function start(record)
  reply.load()
  local query = queries.get(run.query)
  batches.check_run(query, run)
  batches.check_checkpoint(query, run)
  -- An abandoned batch begins again with its pinned watermark.
  local is_same = query.run_id and run.query_id == query.query_id or false
  local previous, was_open = is_same and query.latest or nil, is_same and query.open or false
  local is_replay = previous ~= nil and batch_id <= previous
  local stored = is_same and redis.call('HGET', key.pinned_watermarks(query.name), batch_id)
  if is_replay and not stored then values.refuse('batch_forgotten', {latest_batch_id = query.latest}) end
  local known, pinned = args.known, args.pinned_watermark
  if stored then
    if known and pinned ~= number(stored) then
      values.refuse('pinned_watermark_conflict', {pinned_watermark = number(stored)})
    end
    known, pinned = true, number(stored)
  end
  if job.is_complete and not is_replay then values.refuse('job_complete') end
  local version = not is_replay and query.open and staging.to_join(query)
  if version then return {map = {join = version}} end

  tokens.accept(args.token)
  local joined = not is_replay and joins(query)
  batches.enter(query, run)
  clock.add_outage(query, args.waited_ms)
  if is_replay then return replay(query, pinned, previous, was_open) end
  batches.move_to(query, run.query_id)
  query.previous, query.previous_open = previous, was_open
  record.known, record.pinned, record.joined, record.previous, record.was_open = known, pinned, joined, previous, was_open
  record.commits = query.open
  -- The store has lost the commit, and perhaps also reports of this batch. The batch is therefore no evidence that
  -- substreams are silent.
  if query.open then query.input_known_until = nil end
end

local function open(record)
  local query, pinned = queries.get(run.query), record.pinned
  local input_known_until = args.input_age_ms and job.now - args.input_age_ms
  -- The known pinned watermark must hold W while the previous batch is committed.
  if record.known then batches.open_batch(query, batch_id, pinned, input_known_until, args.keep) end
  if record.commits then evaluate.evaluate(record.has_left) end
  if not record.known then
    pinned = job.coalesced_watermark
    batches.open_batch(query, batch_id, pinned, input_known_until, args.keep)
  end
  return finish(pinned, false, record.joined, record.previous, record.was_open)
end

local measure, learn, observe, count, end_batch = batches.commit_staged(run.query)

return steps.run({start, measure, learn, observe, count, end_batch, open})
end
commands.commit = function()
-- Apply the staged reports of a batch and account for its rows, exactly once. A large batch commits in steps (see
-- parts/steps).
--
-- args   token, run, batch_id, waited_ms, reported (absent: unknown); members, counts (a column for each row class),
--        disposition (dropped or diverted), hours_of_job and hours (see parts/ledger), or stored pieces of these columns: stored,
--        members (range); joined (absent: see parts/staging): version, count, and ranges of pieces
-- reply  applied: false if the batch was already committed; or join: the version of the reports, which the coordinator
--        must join
-- errors query_fenced, query_retired, batch_not_begun, reports_missing

-- Add a column of counts to the totals of the job and of its substreams.
local function account(class, all, column)
  local total, members, counts = 0, {}, {}
  for i, count in ipairs(column) do
    if count ~= 0 then
      members[#members + 1], counts[#counts + 1] = all[i], count
      total = total + count
      if total > values.HIGHEST / 2 then  -- a larger sum of doubles may be inexact
        bulk.add(key.job, class, total)
        total = 0
      end
    end
  end
  observation.count_rows(class, members, counts)
  if total > 0 then bulk.add(key.job, class, total) end
end

local name = args.run.query
local measure, learn, observe, count, end_batch = batches.commit_staged(name)

return steps.run({
  function(record)
    reply.load()
    local query = batches.begun_query(args.run, args.batch_id)
    record.commits = query.open and args.batch_id == query.latest or false
    local version = record.commits and staging.to_join(query)
    if version then return {map = {join = version}} end
    if record.commits and args.reported then
      local missing = args.reported - staging.count(query)
      if missing > 0 then values.refuse('reports_missing', {query = name, batch_id = args.batch_id, missing = missing}) end
    end
    tokens.accept(args.token)
    batches.contact(query)
    clock.add_outage(query, args.waited_ms)
  end,
  measure,
  learn,
  observe,
  count,
  end_batch,
  function(record)
    if record.commits then evaluate.evaluate(record.has_left) end
  end,
  function(record)
    if not record.commits then return end
    return steps.pieces(record, args.stored and args.members, function(piece)
      for class, column in pairs(piece.counts) do account(class, piece.members, column) end
      if args.disposition == 'diverted' and piece.counts.late then account('diverted', piece.members, piece.counts.late) end
      if ledger.add(piece.hours_of_job, piece.hours, piece.members, args.disposition) then record.has_new_hours = true end
    end)
  end,
  function(record)
    if record.has_new_hours then ledger.trim() end
    return reply.finish({applied = record.commits})
  end,
})
end
commands.complete = function()
-- End the input of a job: all substreams become done. Regardless of the throttle, C moves to the end of the last
-- frame that has events or begins before up_to. If the job is already complete, C moves only if up_to is above C.
--
-- args   up_to (absent: up to the last event), actor, reason
-- reply  applied
-- errors batch_open, hold_active
local job, above, up_to = state.job, values.above, args.up_to
reply.load()
if job.is_complete and not (up_to and above(up_to, job.coalesced_watermark)) then return reply.finish({applied = false}) end
local open = redis.call('ZRANGE', key.open_batches, 0, -1)
if #open > 0 then
  table.sort(open, values.sorts_before)
  values.refuse('batch_open', {query = open[1], batch_id = queries.get(open[1]).latest})
end
for _, hold in ipairs(redis.call('ZRANGE', key.holds, 0, -1)) do
  local expires = values.number(redis.call('ZSCORE', key.hold_expiry, hold))
  if not expires or expires > job.observed_now then
    values.refuse('hold_active', {hold = hold, at_most = tonumber(redis.call('ZSCORE', key.holds, hold))})
  end
end
emission.advance(throttle.candidate(job.max_watermark))
local last = job.max_event_time
if up_to and above(up_to - 1, last) then last = math.max(up_to - 1, -values.HIGHEST) end
if last then emission.advance(throttle.end_after(last)) end
emission.raise_watermark(job.coalesced_watermark)
if not job.is_complete then job.is_complete, job.completed = 1, job.observed_now end
journal.write_action('complete', nil, nil, 'up_to', up_to)
return reply.finish({applied = true})
end
commands.completeness = function()
-- Read the delays of a job.
--
-- args   members (unknown members are ignored; absent: the substream that holds the watermark)
-- reply  wait_sum, wait_weight, pool, merged (sketches), rows (member, lag in force, sketch)
local job = state.job
clock.load()
local members = args.members
if not members then
  local held_by = emission.held_by()
  members = held_by and held_by.substream and {held_by.query .. '/' .. held_by.substream} or {}
end
local known, done = membership.known(members), bulk.zmscore(key.done, members)
local sketches, lags, rows = bulk.hmget(key.delays, members), policy.lags_of(members), {}
for i, member in ipairs(members) do
  local has_ended = done[i] or job.is_complete
  if known[i] then
    rows[#rows + 1] = {map = {member = member, lag = not has_ended and lags[i] or nil, sketch = sketch.reply(sketches[i])}}
  end
end
return emission.watermark_state({wait_sum = job.wait_sum and string.format('%.17g', job.wait_sum), wait_weight = job.wait_weight,
  pool = sketch.reply(redis.call('HGET', key.delays, 'pool') or nil),
  merged = sketch.reply(redis.call('HGET', key.delays, 'merged') or nil), rows = rows})
end
commands.configure = function()
-- Create a job, or change its configuration.
--
-- args   version (see state.check_version; absent: create a job), state_epoch, config (JSON text, as the client sent it),
--        compiled_config (JSON text), max_jobs, quota (prefix, jobs), actor, reason; on a Redis Cluster also
--        jobs_elsewhere and in_quota_elsewhere, the numbers of jobs in other buckets
-- reply  created, revision
-- errors job_exists, job_not_found, job_deleted, revision_mismatch, too_many_jobs
--
-- A change runs in steps (see parts/steps).
local number, text, score, highest, minus = values.number, values.text, values.score, values.highest, values.minus
local job, config = state.job, state.config

local function write_config()
  redis.call('HSET', key.job, 'config', args.config, 'compiled_config', args.compiled_config)
  state.configure(args.compiled_config)
  job.revision = (job.revision or 0) + 1
end

local function finish(created)
  return reply.finish({created = created, revision = job.revision})
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
  redis.call('UNLINK', key.job)
  redis.call('HSET', key.job, 'schema', constants.SCHEMA)
  redis.call('SADD', key.jobs, key.name)
  redis.call('ZREM', key.deleted, key.name)
  state.start(incarnation, args.state_epoch, now)
  job.outages = clock.attend(now)
  reply.remember()
  redis.call('HSET', key.job, 'state', 'live', 'created', job.now)
  write_config()
  journal.write('created', 'actor', args.actor, 'reason', args.reason)
  substreams.expect_queries({})
  return finish(true)
end

if not args.version then
  if state.read() == 'live' then values.refuse('job_exists') end
  return create()
end
local before  -- the configuration before the change

local function idle_clock_of(query)
  if query == '' then return job.observed_now end
  return queries.get(query).idle_clock
end

-- Call act() with the previous policies in force, to which the stored states belong.
local function under_previous_policies(act)
  local policies, has_clock_driven = config.policies, config.has_clock_driven
  state.forget_config()
  config.policies, config.has_clock_driven = before.policies, before.has_clock_driven
  local result = act()
  config.policies, config.has_clock_driven = policies, has_clock_driven
  return result
end

local PARAMETERS = {'type', 'initial_lag', 'max_delay_ms', 'max_lull_ms', 'wall_clock_lag_ms', 'late_share', 'floor_ms',
  'ceiling_ms', 'enough'}

local function differs(a, b)
  for _, name in ipairs(PARAMETERS) do
    if a[name] ~= b[name] then return true end
  end
  return false
end

-- Remove a substream from its policy. Return its watermark, and the history that it may keep.
local function leave(old, member, is_active, max_event_time)
  local watermark = number(redis.call('ZSCORE', is_active and key.active or key.frozen, member))
  if not old.limit then return watermark, nil end
  local s = clock_driven.read(redis.call('HGET', key.clock_driven, member))
  if is_active or advancing.idle_ones({member})[1] then
    clock_driven.materialize(s, old, max_event_time)
    watermark = s.own
    advancing.remove({member})
  end
  redis.call('HDEL', key.clock_driven, member)
  return watermark, s.history
end

local function enter_clock_driven(new, member, is_active, max_event_time, watermark, history_before)
  local s = clock_driven.start(new, watermark)
  if history_before and history_before.length == new.max_delay_ms then s.history = history_before end
  if is_active then redis.call('ZREM', key.active, member) end
  local lagged = max_event_time and clock_driven.observe(s, new, max_event_time, max_event_time)
  if is_active then
    advancing.place(member, s, new)
    redis.call('ZADD', key.lagged(new.limit), score(lagged or nil), member)
    job.lowest_clock_driven = math.min(job.lowest_clock_driven, watermark or -math.huge)
  elseif config.freezes_idle then
    clock_driven.write(member, s)
  else
    redis.call('ZREM', key.frozen, member)
    advancing.place(member, s, new, true)
    redis.call('ZADD', key.idle_lagged, score(lagged or nil), member)
  end
end

-- Compute the watermark of a substream from its max event time under the new policy. The watermark does not go back.
local function change_policy(member, is_active)
  local old, new = policy.among(before.policies, member), policy.of(member)
  local event_times = max_event_times.of({member}, before.policies)
  local max_event_time = event_times[1] or nil
  local flat_lag = max_event_time and policy.flat_lag(new, member)
  if not differs(old, new) then
    -- A substream that was idle under another lag has not been evaluated under the new lag yet. It has an entry.
    if is_active and flat_lag and redis.call('ZSCORE', key.max_event_times, member) then
      redis.call('ZADD', key.active, 'GT', score(minus(max_event_time, flat_lag)), member)
      max_event_times.store({member}, event_times)
    end
    return
  end
  if not policy.is_target(new) then redis.call('HDEL', key.learned_lags, member) end
  local watermark, history_before = leave(old, member, is_active, max_event_time)
  if new.limit then
    enter_clock_driven(new, member, is_active, max_event_time, watermark, history_before)
  elseif is_active then
    if flat_lag then watermark = highest(watermark, minus(max_event_time, flat_lag)) end
    redis.call('ZADD', key.active, score(watermark), member)
  else
    redis.call('ZADD', key.frozen, score(watermark), member)
  end
  max_event_times.store({member}, event_times)
end

local function change(record)
  reply.load()
  state.check_version(args.version)
  record.before, record.has_done = redis.call('HGET', key.job, 'compiled_config'), {}
  before = state.decoded(record.before)
  write_config()
  journal.write('config', 'actor', args.actor, 'reason', args.reason)
  if config.max_retention_ms ~= before.max_retention_ms then job.retention = nil end
  record.starts_silence = config.idle_timeout_ms and not before.idle_timeout_ms
  record.queries = substreams.query_names()
end

local function expect_queries(record)
  local remain = steps.each(record, {key.done}, function(members)
    for _, member in ipairs(members) do record.has_done[policy.query_of(member)] = true end
  end)
  if not remain then substreams.expect_queries(record.has_done) end
  return remain
end

-- The silence of reports without batches was not measured before, so it starts now.
local function start_silence(record)
  if not record.starts_silence then return end
  local names, sets = {key.last_events(''), key.idle('')}, {}
  for i, name in ipairs(names) do sets[i] = {name, '-inf', '(' .. text(job.observed_now)} end
  return steps.each(record, sets, function(members, i)
    bulk.zadd_all(names[i], job.observed_now, members)
    return #members
  end)
end

-- Make idle substreams active that are not silent under the new configuration.
local function undo_idle(record)
  before = state.decoded(record.before)
  local sets = {}
  for i, query in ipairs(record.queries) do
    local idle_clock = idle_clock_of(query)
    local silent = config.idle_timeout_ms and idle_clock and text(idle_clock - config.idle_timeout_ms) or '-inf'
    sets[i] = {key.idle(query), '(' .. silent, '+inf'}
  end
  return under_previous_policies(function()
    return steps.each(record, sets, function(members, i)
      local _, active = bulk.split_by_set(key.forced_idle, members)
      return #idleness.activate(record.queries[i], active, false)
    end)
  end)
end

local function change_policies(record)
  before = state.decoded(record.before)
  local sets = {}
  for _, query in ipairs(record.queries) do
    sets[#sets + 1], sets[#sets + 2] = key.last_events(query), key.idle(query)
  end
  return steps.each(record, sets, function(members, i)
    for _, member in ipairs(members) do change_policy(member, i % 2 == 1) end
  end)
end

return steps.run({change, expect_queries, start_silence, undo_idle, change_policies, function(record)
    if not job.is_complete then idleness.time_out_queries() end
    for _, query in ipairs(record.queries) do idleness.expire(query, idle_clock_of(query)) end
    job.evaluate_each = 1
    evaluate.evaluate()
    return finish(false)
  end})
end
commands.confirm = function()
-- Write a constant, so that a WAIT after this call waits for all earlier writes to the server.
redis.call('HSET', key.attendance, 'confirmed', 1)
return {map = {}}
end
commands.declare = function()
-- Make substreams known before their first event, so that they hold the watermark from the start. The watermark does
-- not move.
--
-- args   max_substreams, query, members, max_event_times (columns; false: unknown), actor, reason
-- reply  applied
-- errors job_complete, too_many_substreams
local job, number, query = state.job, values.number, args.query

-- Return the new members of a piece, and a report of the members that have no event time yet.
local function changes_of(piece)
  local members = piece.members
  local known, done, before = membership.known(members), bulk.zmscore(key.done, members), max_event_times.of(members)
  local new, unseen = {}, {members = {}, max_event_times = {}, watermarks = {}}
  for i, member in ipairs(members) do
    if not known[i] then new[#new + 1] = member end
    if number(piece.max_event_times[i]) and not before[i] and not done[i] and not job.is_complete then
      local at = #unseen.members + 1
      unseen.members[at], unseen.max_event_times[at] = member, piece.max_event_times[i]
    end
  end
  return new, unseen
end

local function declare(record, piece)
  local new, unseen = changes_of(piece)
  local observed = clock.observed_time(query)
  if #new > 0 then observation.add_substreams(query, new, observed) end
  unseen = observation.set_aside_future(unseen)
  local _, active = observation.observe(query, unseen, observed)
  journal.add(record.active, active)
  record.is_observed = record.is_observed or #unseen.members > 0
  local is_affected, affected = {}, {}
  for _, list in ipairs({new, unseen.members}) do
    for _, member in ipairs(list) do is_affected[member] = true end
  end
  for _, member in ipairs(piece.members) do
    if is_affected[member] then affected[#affected + 1] = member end
  end
  journal.add(record.affected, affected)
end

return steps.run({
  function(record)
    reply.load()
    record.affected, record.active = journal.summary(), journal.summary()
    observation.look_for_room(record, args.size or #args.members)
  end,
  function(record)
    return substreams.each(record, function(piece)
      local new, unseen = changes_of(piece)
      if #new > 0 and job.is_complete then values.refuse('job_complete') end
      observation.count_new(record, query, piece.members)
      observation.check(record, unseen)
    end)
  end,
  function(record)
    observation.refuse_if_full(record)
    if record.future then journal.write_substreams('future', query, record.future) end
  end,
  function(record)
    return substreams.each(record, function(piece) declare(record, piece) end)
  end,
  function(record)
    journal.write_substreams('active', query, record.active)
    if record.is_observed then
      job.evaluation_due = 1
      -- Computed watermarks assume that only evaluations sample a history.
      if state.config.has_clock_driven then job.evaluate_each = 1 end
    end
    if record.affected.count > 0 then journal.write_action('declare', query, record.affected) end
    return reply.finish({applied = record.affected.count > 0})
  end,
})
end
commands.delete = function()
-- Delete a job and its data. A tombstone stays for some time, so that reports are refused. The highest incarnation of all
-- deleted jobs stays, so that a create starts a new incarnation.
--
-- args   version (see state.check_version), tombstones (number of tombstones that stay)
-- errors job_not_found, revision_mismatch; a repeated delete succeeds
local job = state.job
state.changes.is_step = true  -- also during another command's steps, whose remaining steps are then lost
if state.read() == 'deleted' then
  -- The tombstones of older versions do not expire.
  state.expire_tombstone(tonumber(redis.call('HGET', key.job, 'deleted')), args.tombstones)
  return {map = {}}
end
clock.load()
state.check_version(args.version)
removal.remove_all()
redis.call('UNLINK', key.journal)
for _, interval in ipairs(constants.SAMPLE_INTERVALS_MS) do redis.call('UNLINK', key.timeline(interval)) end
state.delete(args.tombstones)
redis.call('ZREM', key.sweeps, key.name)
redis.call('SREM', key.jobs, key.name)
journal.announce()
return {map = {}}
end
commands.distribution = function()
-- Count the substreams by watermark, in bins of equal width.
--
-- args   more_than (a job with at most this number of substreams has no distribution), widths (of a bin in
--        milliseconds, ascending), max_bins
-- reply  width (absent: no distribution), start (of the first bin), active, others (columns of counts), earlier (number
--        of idle and done substreams before the first bin)
local text = values.text
clock.load()

-- Return the lowest and the highest watermark in some sets.
local function range_of(sets)
  local low, high
  for _, set in ipairs(sets) do
    local first = redis.call('ZRANGE', set[1], '(-inf', '+inf', 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')[2]
    local _, last = values.highest_of(set[1])
    if first and (not low or first + set[2] < low) then low = first + set[2] end
    if last and (not high or last + set[2] > high) then high = last + set[2] end
  end
  return low, high
end

local function width_for(span)
  for _, width in ipairs(args.widths) do
    if span < width * (args.max_bins - 1) then return width end
  end
  local width = args.widths[#args.widths]
  while span >= width * (args.max_bins - 1) do width = 2 * width end
  return width
end

local function count(sets, from, to)
  local sum = 0
  for _, set in ipairs(sets) do
    sum = sum + redis.call('ZCOUNT', set[1], text(from - set[2]), '(' .. text(to - set[2]))
  end
  return sum
end

local job = state.job
local sets = emission.active_sets()
local frozen = {{key.frozen, 0}, {key.idle_constant, 0}, {key.idle_advancing, job.evaluated or 0}}
if job.is_complete then  -- all substreams are done
  for _, set in ipairs(sets) do frozen[#frozen + 1] = set end
  sets = {}
end
local low, high = range_of(sets)
local lowest_frozen, highest_frozen = range_of(frozen)
low = low or lowest_frozen
if not low or membership.count() <= args.more_than then return emission.watermark_state() end
high = math.max(high or highest_frozen, highest_frozen or high)
local width = width_for(high - low)
local start, active, others = low - values.modulo(low, width), {}, {}
for from = start, high, width do
  active[#active + 1], others[#others + 1] = count(sets, from, from + width), count(frozen, from, from + width)
end
local earlier = 0
for _, set in ipairs(frozen) do
  earlier = earlier + redis.call('ZCOUNT', set[1], '(-inf', '(' .. text(start - set[2]))
end
return emission.watermark_state({width = width, start = start, active = active, others = others, earlier = earlier})
end
commands.done = function()
-- Mark substreams as done, so that they never hold the watermark again. If any substream is unknown, no substream
-- changes.
--
-- args   query, members, actor, reason
-- reply  applied
-- errors substream_not_found
local query = args.query

local function set_done(members)
  local active, idle = bulk.split_by_set(key.last_events(query), members)
  bulk.zadd_each(key.done, bulk.zmscore(key.last_events(query), active), active)
  bulk.zadd_each(key.done, bulk.zmscore(key.idle(query), idle), idle)
  idleness.freeze(active)
  idleness.freeze((bulk.split(idle, advancing.idle_ones(idle))))
  bulk.zadd_all(key.since, state.job.now, members)
  for _, name in ipairs({key.last_events(query), key.idle(query), key.forced_idle}) do bulk.zrem(name, members) end
  bulk.hdel(key.clock_driven, members)
end

return steps.run({
  function(record)
    reply.load()
    record.done = journal.summary()
  end,
  function(record)
    return substreams.check_known(record, query)
  end,
  function(record)
    return substreams.each(record, function(piece)
      local _, new = bulk.split_by_set(key.done, piece.members)
      set_done(new)
      journal.add(record.done, new)
    end)
  end,
  function(record)
    if record.done.count > 0 then journal.write_action('done', query, record.done) end
    evaluate.evaluate(true)
    return reply.finish({applied = record.done.count > 0})
  end,
})
end
commands.due = function()
-- Record that a coordinator serves the jobs of a bucket, and take jobs that are due for a sweep.
--
-- A taken job is due again after args.lease_ms, unless its sweep schedules it. Coordinators therefore sweep different
-- jobs, and another one sweeps the jobs of a coordinator that stops.
--
-- args   by_ms (processing time until which jobs are due), limit, lease_ms
-- reply  jobs (the taken jobs, earliest first)
local now = clock.now()
clock.attend(now)
local jobs = redis.call('ZRANGE', key.sweeps, '-inf', args.by_ms, 'BYSCORE', 'LIMIT', 0, args.most)
for _, job in ipairs(jobs) do redis.call('ZADD', key.sweeps, now + args.lease_ms, job) end
return {map = {jobs = jobs}}
end
commands.evict = function()
-- Evict substreams; ignore unknown substreams.
--
-- args   query, members, actor, reason
-- reply  applied
return steps.run({
  function(record)
    reply.load()
    record.evicted = journal.summary()
  end,
  function(record)
    return substreams.each(record, function(piece)
      local known = membership.split(piece.members)
      substreams.note_removed(record, known)
      substreams.forget(args.query, known)
      journal.add(record.evicted, known)
    end)
  end,
  substreams.lower_maxima,
  function(record)
    if record.evicted.count > 0 then journal.write_action('evict', args.query, record.evicted) end
    evaluate.evaluate(true)
    return reply.finish({applied = record.evicted.count > 0})
  end,
})
end
commands.explain = function()
-- Return the data of an explanation: the job after a sweep, and its holders, lowest first. Active substreams and open
-- batches are limited to those that may hold the watermark.
--
-- args   limit
-- reply  config (JSON), unattended_ms, max_watermark, coalesced_watermark_since_ms, watermark_since_ms,
--        retention (parts/history), holds, open_batches, substreams, queries (of these batches and substreams)
local job, number = state.job, values.number
local limit = args.most
reply.load()
evaluate.sweep_for_read()

local listed, is_listed = {}, {}
local function list_query(query)
  if is_listed[query] or query == '' then return end
  is_listed[query] = true
  local of = queries.get(query)
  listed[#listed + 1] = {map = {query = query, outage_ms = of.outage, idle_clock_ms = of.idle_clock,
    last_seen_ms = number(redis.call('ZSCORE', key.last_seen, query))}}
end

local substreams, behind = {}, emission.slowest_first(emission.active_sets(), limit)
for i = 1, math.min(limit, #behind) do
  local one = behind[i]
  local query = policy.query_of(one.member)
  list_query(query)
  local is_advancing = redis.call('ZSCORE', key.advancing, one.member)
  local change = is_advancing and job.observed_now + 1 or number(redis.call('ZSCORE', key.next_change, one.member))
  substreams[i] = {map = {member = one.member, watermark = one.watermark > -math.huge and one.watermark or nil,
    max_event_time = max_event_times.of_one(one.member),
    last_event_ms = number(redis.call('ZSCORE', key.last_events(query), one.member)),
    next_change_ms = change and change > -math.huge and math.min(change, values.HIGHEST + 1) or nil}}
end

local open = {}
local pins = redis.call('ZRANGE', key.open_pins, 0, limit - 1, 'WITHSCORES')
for i = 1, #pins, 2 do
  local query = pins[i]
  list_query(query)
  local of = queries.get(query)
  open[#open + 1] = {map = {query = query, pinned_watermark = number(pins[i + 1]), batch_id = of.latest,
    begun_ms = of.begun, begun_observed_ms = number(redis.call('ZSCORE', key.open_batches, query))}}
end

return reply.finish({config = redis.call('HGET', key.job, 'config'), unattended_ms = job.unattended,
  max_watermark = job.max_watermark, coalesced_watermark_since_ms = job.coalesced_watermark_since,
  watermark_since_ms = job.watermark_since, retention = job.retention and history.line(job.retention), holds = holds.in_order(), open_batches = open,
  substreams = substreams, queries = listed})
end
commands.heartbeat = function()
-- Advance the idle clock of a query that has processed all input and has no new data, unless a batch is open.
--
-- args   token, run, observed_ms, waited_ms, after_batch (absent: no check)
-- reply  applied: false if the clock did not advance
-- errors query_fenced, query_retired, checkpoint_conflict
reply.load()
local query = queries.get(args.run.query)
batches.check_run(query, args.run)
batches.check_checkpoint(query, args.run)
tokens.accept(args.token)
batches.enter(query, args.run)
clock.add_outage(query, args.waited_ms)
local applied = not query.open and (not args.after_batch or args.after_batch == query.latest)
if applied then
  clock.observe_until(query, math.min(args.observed_ms, state.job.now))
  evaluate.evaluate(idleness.expire(query.name, query.idle_clock))
end
return reply.finish({applied = applied})
end
commands.history = function()
-- Read the records of a job, latest first.
--
-- args   first (a time), last ('+', a time, or '(' and an id), limit
-- reply  records, oldest (the oldest record kept; empty: no records); records are entries of the stream
clock.load()
return emission.watermark_state({
  records = redis.call('XREVRANGE', key.journal, args.last, args.first, 'COUNT', args.most),
  oldest = redis.call('XRANGE', key.journal, '-', '+', 'COUNT', 1)})
end
commands.hold = function()
-- Keep C, and therefore W, at or below a value. A repeated hold expires at the later of the two times.
--
-- args   hold, at_most, duration_ms (absent: until the hold is released), actor, reason
-- reply  applied
-- errors job_complete, hold_exists
local job, hold, duration = state.job, args.hold, args.duration_ms
reply.load()
if job.is_complete then values.refuse('job_complete') end
local present = values.number(redis.call('ZSCORE', key.holds, hold))
local expires = values.number(redis.call('ZSCORE', key.hold_expiry, hold))
local in_force = present and (not expires or expires > job.observed_now)
if in_force and present ~= args.at_most then values.refuse('hold_exists', {hold = hold, at_most = present}) end
if in_force and not (expires and (not duration or job.observed_now + duration > expires)) then
  return reply.finish({applied = false})
end
if present and not in_force then job.evaluation_due = 1 end  -- the expired hold no longer limits C
holds.remove(hold)
redis.call('ZADD', key.holds, args.at_most, hold)
if duration then redis.call('ZADD', key.hold_expiry, job.observed_now + duration, hold) end
redis.call('HSET', key.hold_reasons, hold, args.reason)
journal.write_action('hold', nil, nil, 'hold', hold, 'at_most', args.at_most)
return reply.finish({applied = true})
end
commands.idle = function()
-- Make substreams idle, so that they do not hold the watermark until their next event. If any substream is unknown or
-- done, no substream changes.
--
-- args   query, members, actor, reason
-- reply  applied
-- errors substream_not_found, substream_done
local query = args.query

return steps.run({
  function(record)
    reply.load()
    record.idle, record.has_left = journal.summary(), false
  end,
  function(record)
    return substreams.check_known(record, query)
  end,
  function(record)
    return steps.check(record, args.stored and args.members, function(piece)
      return (bulk.split_by_set(key.done, piece.members))
    end, function(done)
      values.refuse('substream_done', {query = query, substreams = done})
    end)
  end,
  function(record)
    return substreams.each(record, function(piece)
      local active = bulk.split_by_set(key.last_events(query), piece.members)
      local has_left = #active > 0 and idleness.set_idle(query, active, bulk.zmscore(key.last_events(query), active))
      bulk.zadd_all(key.forced_idle, 1, piece.members)
      journal.add(record.idle, active)
      record.has_left = record.has_left or has_left
    end)
  end,
  function(record)
    if record.idle.count > 0 then journal.write_action('idle', query, record.idle) end
    evaluate.evaluate(record.has_left)
    return reply.finish({applied = record.idle.count > 0})
  end,
})
end
commands.late = function()
-- Read late rows by hour of event time, oldest hour first. A large result is split into several replies.
--
-- args   member ('': the job), after (last hour of the previous reply; absent: from the first hour)
-- reply  is_known (the member is a substream), counts (rows by class), hours (hour; late: hash of
--        '<disposition> <member>'; names, rows: rows of the member, of no substream, and of the members with late
--        rows), next (value of after for the next reply; absent: no more hours)
local ENTRIES_AT_ONCE = 5000
local CLASSES = {'on_time', 'updated', 'late', 'null_event_time', 'future', 'diverted'}
local member = args.member
clock.load()

local function rows_of(hour)
  local late, names, is_listed = redis.call('HGETALL', key.hour_late(hour)), {member, '?'}, {[member] = true}
  for i = 1, #late, 2 do
    local name = string.match(late[i], '^%a+ (.*)$')
    if not is_listed[name] then
      is_listed[name], names[#names + 1] = true, name
    end
  end
  return {hour = hour, late = late, names = names, rows = bulk.hmget(key.hour_rows(hour), names)}
end

local hours, entries, following = {}, 0, nil
for _, hour in ipairs(redis.call('ZRANGE', key.hours, args.after and '(' .. args.after or '-inf', '+inf', 'BYSCORE')) do
  if entries > ENTRIES_AT_ONCE then
    following = hours[#hours].map.hour
    break
  end
  local found = rows_of(hour)
  hours[#hours + 1], entries = {map = found}, entries + #found.names
end

local fields, counts = {}, {}
for i, class in ipairs(CLASSES) do fields[i] = member == '' and class or class .. ' ' .. member end
local found = redis.call('HMGET', member == '' and key.job or key.rows, unpack(fields))
for i, class in ipairs(CLASSES) do counts[class] = found[i] or nil end
return emission.watermark_state({is_known = membership.known({member})[1] or nil,
  counts = {map = counts}, hours = hours, next = following})
end
commands.put = function()
-- Store a piece of the columns of a large command before the command (see parts/steps).
--
-- args   stored (id of the pieces), number (from 0), piece (columns)
local pieces = key.pieces(args.stored)
redis.call('HSET', pieces, args.number, cmsgpack.pack(args.piece))
redis.call('PEXPIRE', pieces, constants.PIECES_KEPT_MS)
return {map = {}}
end
commands.queries = function()
-- Read the queries of a job with their latest batches.
--
-- reply  rows (the fields of tidegate.domain.results.QueryRow)
local number = values.number
clock.load()
local rows = {}
for _, query in ipairs(redis.call('ZRANGE', key.queries, 0, -1)) do
  local of = queries.get(query)
  local pinned = of.latest and redis.call('HGET', key.pinned_watermarks(query), of.latest)
  rows[#rows + 1] = {map = {query = query, query_id = of.query_id, run_id = of.run_id, batch_id = of.latest,
    batch_open = of.open or false, pinned_watermark = number(pinned), begun_ms = of.begun,
    idle_clock_ms = of.idle_clock and of.idle_clock + of.outage, last_contact_ms = of.last_contact,
    batch_released = (of.open and of.released) or false, retired = of.retired or false}}
end
return emission.watermark_state({rows = rows})
end
commands.release = function()
-- Release a hold.
--
-- args   hold, actor, reason
-- errors hold_not_found
reply.load()
if not redis.call('ZSCORE', key.holds, args.hold) then values.refuse('hold_not_found', {hold = args.hold}) end
holds.remove(args.hold)
journal.write_action('release', nil, nil, 'hold', args.hold)
evaluate.evaluate()
return reply.finish()
end
commands.reopen = function()
-- Reopen a complete job. The watermark does not go back.
--
-- args   actor, reason
-- reply  applied
local job = state.job
reply.load()
if not job.is_complete then return reply.finish({applied = false}) end
-- The job refused reports while it was complete, so this time does not count as silence.
job.unattended = job.unattended + (job.observed_now - job.completed)
job.is_complete, job.observed_now = nil, job.completed
journal.write_action('reopen')
-- While the job was complete, idle clocks may have advanced, but no substream became idle.
local has_left = idleness.time_out_queries()
for _, query in ipairs(redis.call('SMEMBERS', key.query_names)) do
  has_left = idleness.expire(query, queries.get(query).idle_clock) or has_left
end
evaluate.evaluate(has_left)
return reply.finish({applied = true})
end
commands.report = function()
-- Apply event times and watermarks immediately, without a batch. A large report runs in steps (see parts/steps).
--
-- args   max_substreams; tokens (of the clients that sent the reports); members, max_event_times, watermarks,
--        min_event_times (columns); delayed, delays (columns: members, lists of alternating buckets and rows; may be
--        absent); or stored pieces of these columns: stored, size (number of members), members and delayed (ranges)
-- reply  applied; without_effect (members; absent if the columns were stored)
-- errors job_complete, event_time_missing, too_many_substreams
local job, config, number = state.job, state.config, values.number

-- Return the lowest event time, which limits watermarks that follow the clock; infinite if there are no such watermarks.
local function lowest_event_time(report)
  local event_times, min_event_times = report.max_event_times, report.min_event_times
  if not config.has_clock_driven and #event_times > 0 then return math.huge end
  local lowest
  for i, event_time in ipairs(event_times) do
    local time = number(event_time) and (number(min_event_times[i]) or number(event_time))
    if time and (not lowest or time < lowest) then lowest = time end
  end
  return lowest
end

local function missing_from(names, members)
  if #names == #members then return {} end
  local has_effect, missing = {}, {}
  for _, name in ipairs(names) do has_effect[name] = true end
  for _, member in ipairs(members) do
    if not has_effect[member] then missing[#missing + 1] = member end
  end
  return missing
end

local function each(column)
  return function(record, visit) return steps.pieces(record, args.stored and args[column], visit) end
end

local measure, learn = delays.phases('', each('delayed'), merge.merged_watermark)

return steps.run({
  function(record)
    reply.load()
    if not args.stored then state.look_for_rare_sets() end
    if job.is_complete then values.refuse('job_complete') end
    observation.look_for_room(record, args.size or #args.members)
  end,
  function(record)
    return steps.check(record, args.stored and args.members, function(piece)
      observation.count_new(record, '', piece.members)
      return observation.check(record, piece)
    end, observation.refuse_watermarks)
  end,
  function(record)
    observation.refuse_if_full(record)
    for _, token in ipairs(args.tokens) do tokens.accept(token) end
    job.last_contact = job.now
    if record.future then journal.write_substreams('future', '', record.future) end
  end,
  measure,
  learn,
  function(record)
    record.active = record.active or journal.summary()
    return each('members')(record, function(piece)
      local kept = observation.set_aside_future(piece)
      local names, active = observation.observe('', kept, job.observed_now, piece.members)
      journal.add(record.active, active)
      record.applied = record.applied or #names > 0
      record.lowest = math.min(lowest_event_time(kept) or math.huge, record.lowest or math.huge)
      if not args.stored then record.without_effect = missing_from(names, piece.members) end
    end)
  end,
  function(record)
    journal.write_substreams('active', '', record.active)
    evaluate.after_report(record.lowest)
    return reply.finish({applied = record.applied, without_effect = record.without_effect})
  end,
})
end
commands.reset = function()
-- Start a new incarnation under the same configuration, without a watermark. The journal and the timeline stay.
--
-- args   state_epoch, actor, reason
local job = state.job
state.changes.is_step = true  -- also during another command's steps, whose remaining steps are then lost
reply.load()
removal.remove_all()
redis.call('HDEL', key.job, 'steps_argument', 'steps_reply')
state.start(job.incarnation + 1, args.state_epoch, job.now)
reply.remember()
journal.write_action('reset')
substreams.expect_queries({})
return reply.finish()
end
commands.restore = function()
-- Raise the watermarks of known substreams, and raise C to the lowest watermark of all substreams. Holds limit C; the
-- throttle does not. Runs in steps (see parts/steps).
--
-- args   query, members, watermarks (columns), actor, reason
-- reply  applied
-- errors job_complete, substream_not_found
local job, number, score = state.job, values.number, values.score
local query = args.query

-- Restore a substream that is done or does not follow the clock.
local function restore_flat(member, watermark, is_active)
  local event_times = max_event_times.of({member})
  redis.call('ZADD', is_active and key.active or key.frozen, score(watermark), member)
  max_event_times.store({member}, event_times)
  local packed = redis.call('HGET', key.clock_driven, member)
  if packed then
    local s = clock_driven.read(packed)
    s.own = watermark
    clock_driven.write(member, s)
  end
end

local function restore(record, piece)
  local members = piece.members
  local active, frozen, driven, watermarks = bulk.zmscore(key.active, members), bulk.zmscore(key.frozen, members), {}, {}
  for i, member in ipairs(members) do
    local watermark = piece.watermarks[i]
    if not active[i] and not frozen[i] then  -- follows the clock
      driven[#driven + 1], watermarks[member] = member, watermark
    elseif values.above(watermark, number(active[i] or frozen[i])) then
      restore_flat(member, watermark, active[i])
      journal.add(record.restored, {member})
    end
  end
  local idle = advancing.idle_ones(driven)
  advancing.each_materialized(driven, function(member, s, rule, _, i)
    if not values.above(watermarks[member], s.own) then return end
    s.own = watermarks[member]
    advancing.place(member, s, rule, idle[i])
    journal.add(record.restored, {member})
  end)
end

return steps.run({
  function(record)
    reply.load()
    if job.is_complete then values.refuse('job_complete') end
    record.restored, record.lowest = journal.summary(), math.huge
  end,
  function(record)
    return substreams.check_known(record, query)
  end,
  function(record)
    return substreams.each(record, function(piece) restore(record, piece) end)
  end,
  function(record)
    if record.restored.count == 0 then return end
    return steps.each(record, advancing.sets(), function(members)
      advancing.each_materialized(members, function(_, s) record.lowest = math.min(record.lowest, s.own or -math.huge) end)
    end)
  end,
  function(record)
    if record.restored.count == 0 then return reply.finish({applied = false}) end
    local lowest = record.lowest
    job.evaluate_each, job.evaluation_due = 1, 1
    for _, name in ipairs({key.active, key.frozen}) do
      local first, watermark = values.lowest_of(name)
      if first then lowest = math.min(lowest, watermark or -math.huge) end
    end
    journal.write_action('restore', query, record.restored)
    lowest = holds.cap(lowest)
    if lowest > -math.huge then emission.advance(lowest) end
    emission.emit()
    return reply.finish({applied = true})
  end,
})
end
commands.resume = function()
-- Run the next step of a command (see parts/steps).
--
-- args   steps (id of the command)
-- reply  steps (the id, if another step is due), or the reply of the command
-- errors steps_lost
local command, ended = steps.resume()
if not command then return ended end
return commands[command]()
end
commands.retire = function()
-- Retire a query: abandon its open batch, and move its substreams to a successor or evict them. A query that is its own
-- successor keeps its substreams and may begin on another checkpoint. Runs in steps (see parts/steps).
--
-- args   query, successor (absent: evict), actor, reason
-- reply  applied
-- errors query_not_found
local job = state.job
local name, successor = args.query, args.successor

-- Move members of a sorted set to another set under other names. score (absent: the present one): their new score.
local function move(from_key, to_key, from, to, score)
  local present, moved = {}, {}
  for i, present_score in ipairs(bulk.zmscore(from_key, from)) do
    if present_score then
      present[#present + 1] = from[i]
      moved[#moved + 1], moved[#moved + 2] = score or present_score, to[i]
    end
  end
  bulk.zrem(from_key, present)
  bulk.zadd(to_key, nil, moved)
end

local function move_fields(name_, from, to)
  local moved = {}
  for i, value in ipairs(bulk.hmget(name_, from)) do
    if value then moved[#moved + 1], moved[#moved + 2] = to[i], value end
  end
  bulk.hset(name_, moved)
  bulk.hdel(name_, from)
end

-- Add the counters of members to those under other names.
local function move_rows(from, to)
  for _, class in ipairs(substreams.ROW_CLASSES) do
    local fields = {}
    for i, member in ipairs(from) do fields[i] = class .. ' ' .. member end
    for i, rows in ipairs(bulk.hmget(key.rows, fields)) do
      if rows then bulk.add(key.rows, class .. ' ' .. to[i], rows) end
    end
    bulk.hdel(key.rows, fields)
  end
end

-- Move substreams with their states to the successor; their silence starts now.
local function hand_over(from, to, now)
  redis.call('SADD', key.query_names, successor)
  observation.remove_placeholder(successor)
  local sets = {key.max_event_times, key.active, key.frozen, key.forced_idle, key.since, key.constant, key.advancing,
    key.next_change, key.idle_constant, key.idle_advancing, key.idle_lagged}
  for _, limit in ipairs(constants.POLICY_LIMITS) do sets[#sets + 1] = key.lagged(limit) end
  for _, set in ipairs(sets) do move(set, set, from, to) end
  move(key.done, key.done, from, to, now)
  move(key.last_events(name), key.last_events(successor), from, to, now)
  move(key.idle(name), key.idle(successor), from, to, now)
  for _, hash in ipairs({key.clock_driven, key.delays, key.learned_lags}) do move_fields(hash, from, to) end
  move_rows(from, to)
end

-- Move members to the successor, unless it has substreams with their names; evict the others.
local function remove(record, members)
  if successor then
    local names, from, to = {}, {}, {}
    for i, member in ipairs(members) do names[i] = successor .. '/' .. policy.name_of(member) end
    for i, is_taken in ipairs(membership.known(names)) do
      if not is_taken then from[#from + 1], to[#to + 1] = members[i], names[i] end
    end
    if #from > 0 then hand_over(from, to, (clock.observed_time(successor))) end
  end
  substreams.note_removed(record, members)
  substreams.forget(name, members)
  journal.add(record.removed, members)
  return #members
end

-- Abandon the open batch of a query that keeps its substreams.
local function give_up(query)
  local applied = query.open
  if applied then
    batches.give_up(query)
    journal.write_action('hand_over', name, nil, 'successor', successor)
  end
  evaluate.evaluate(true)
  return reply.finish({applied = applied})
end

return steps.run({
  function(record)
    clock.read()
    record.removed = journal.summary()
  end,
  function(record)  -- a query may have done substreams only
    return steps.each(record, {key.done}, function(members)
      record.has_done = record.has_done or #substreams.of_query(name, members) > 0
    end)
  end,
  function(record)
    clock.advance(clock.now())
    reply.remember()
    local query, is_missing = queries.get(name), redis.call('SISMEMBER', key.missing_queries, name) == 1
    local is_empty = not record.has_done and not is_missing
      and redis.call('EXISTS', key.last_events(name), key.idle(name)) == 0
    if is_empty and not query.run_id then values.refuse('query_not_found', {query = name}) end
    if is_empty and query.retired then return reply.finish({applied = false}) end
    if successor == name then return give_up(query) end
    if not query.run_id then  -- the query has made no call: store it as retired
      redis.call('ZADD', key.queries, 'NX', job.now, name)
      redis.call('SADD', key.query_names, name)
      query.query_id, query.run_id, query.last_contact = '', '', job.now
    end
    batches.give_up(query)
    redis.call('ZREM', key.last_seen, name)
    observation.remove_placeholder(name)
  end,
  function(record)
    return steps.each(record, {key.last_events(name), key.idle(name)}, function(members) return remove(record, members) end)
  end,
  function(record)
    return steps.each(record, {key.done}, function(members) return remove(record, substreams.of_query(name, members)) end)
  end,
  substreams.lower_maxima,
  function(record)
    journal.write_action(successor and 'hand_over' or 'retire', name, record.removed, 'successor', successor)
    evaluate.evaluate(true)
    return reply.finish({applied = true})
  end,
})
end
commands.stage = function()
-- Store the report of one partition until its batch commits.
--
-- args   max_substreams, token, run, batch_id, partition; members, max_event_times, watermarks, rows, future_rows (columns;
--        rows and future_rows may be empty); delayed, delays (columns: members, lists of alternating buckets and rows)
-- reply  applied: false if the batch is already committed
-- errors query_fenced, query_retired, batch_not_begun, event_time_missing, too_many_substreams
return steps.run({
  function(record)
    reply.load()
    local query = batches.begun_query(args.run, args.batch_id)
    record.is_open = query.open and args.batch_id == query.latest or false
    if record.is_open then observation.look_for_room(record, args.size or #args.members) end
  end,
  function(record)
    return steps.check(record, args.stored and args.members, function(piece)
      observation.count_new(record, args.run.query, piece.members)
      return observation.check(record, piece)
    end, observation.refuse_watermarks)
  end,
  function(record)
    observation.refuse_if_full(record)
    tokens.accept(args.token)
    batches.contact(queries.get(args.run.query))
    if record.is_open and record.future then journal.write_substreams('future', args.run.query, record.future) end
  end,
  function(record)
    if not record.is_open then return end
    return steps.pieces(record, args.stored and args.members, function(piece)
      local kept = observation.set_aside_future(piece)
      staging.add(queries.get(args.run.query), {partition = args.partition, members = kept.members,
        event_times = kept.max_event_times, watermarks = kept.watermarks, counted = piece.members, rows = piece.rows,
        future_rows = piece.future_rows, delayed = piece.delayed, delays = piece.delays})
    end)
  end,
  function(record) return reply.finish({applied = record.is_open}) end,
})
end
commands.staged = function()
-- Return some of the staged reports of a query, which the coordinator joins before the batch commits (see parts/staging).
--
-- args   query, cursor (0: the first reports)
-- reply  cursor (0: no more reports), reports: each with its order, and members, event_times, watermarks, counted, rows,
--        future_rows, delayed and delays (columns)
clock.read()
local cursor, found = unpack(redis.call('HSCAN', key.staged(args.query), args.cursor, 'COUNT', 1))
local reports = {}
for i = 2, #found, 2 do
  local order, report = cmsgpack.unpack(found[i])
  report.order, reports[#reports + 1] = order, {map = report}
end
return {map = {cursor = cursor, reports = reports}}
end
commands.status = function()
-- Read the status of a job.
--
-- reply  config (JSON), revision, created_ms, and the fields of tidegate.domain.results.JobSummary
local job, number = state.job, values.number
clock.load()
local missing = redis.call('SMEMBERS', key.missing_queries)
local done = redis.call('ZCARD', key.done)
local known = membership.count() - #missing
local active = membership.count_active()
local idle = membership.count() - active - done
for _, query in ipairs(missing) do
  if redis.call('ZSCORE', key.active, query .. '/') then active = active - 1 else idle = idle - 1 end
end
if job.is_complete then active, idle, done = 0, 0, known end

local found = {revision = job.revision, max_event_time = job.max_event_time, max_watermark = job.max_watermark,
  active = active, idle = idle, done = done, all_idle = job.all_idle, emissions = job.emissions, throttled = job.throttled,
  last_contact_ms = job.last_contact, open_batches = redis.call('ZCARD', key.open_batches), holds = holds.in_order(),
  missing_queries = missing}
local FIELDS = {'config', 'created', 'on_time', 'updated', 'late', 'null_event_time', 'future', 'future_rows',
  'tokens_ignored'}
for i, value in ipairs(redis.call('HMGET', key.job, unpack(FIELDS))) do found[FIELDS[i]] = value or nil end
found.limits = {}
for _, limit in ipairs(constants.LIMITS) do
  found.limits[limit] = number(redis.call('HGET', key.job, 'limit ' .. limit))
end
found.limits = {map = found.limits}
return emission.watermark_state(found)
end
commands.substreams = function()
-- Read some substreams, or all substreams of a small job.
--
-- args   members (unknown members are ignored), limit (absent: 0). If slowest (a number) is present and the job has more
--        than limit: the holder, and the slowest active substreams, after (absent: from the start) a member and its
--        watermark
-- reply  config (JSON), max_watermark, is_complete (whether rows has all substreams: the job has at most limit),
--        rows (member, and the fields of tidegate.domain.results.SubstreamRow), slowest (members in order)
local job, config, number = state.job, state.config, values.number
local CLASSES = {'reported_rows', 'future_rows', 'on_time', 'updated', 'late', 'null_event_time', 'future'}
clock.load()

local function watermark_of(member)
  local rule = policy.of(member)
  if rule.limit and (redis.call('ZSCORE', key.lagged(rule.limit), member) or advancing.idle_ones({member})[1]) then
    return clock_driven.own_watermark(clock_driven.read(redis.call('HGET', key.clock_driven, member)), rule)
  end
  return number(redis.call('ZSCORE', key.active, member) or redis.call('ZSCORE', key.frozen, member))
end

local times = {}  -- observed time and outages, by query

local function row_of(member, max_event_time)
  local query = policy.query_of(member)
  if not times[query] then times[query] = {clock.observed_time(query)} end
  local observed, outage = unpack(times[query])
  local state_, last_event = idleness.state_of(query, member, observed)
  local since = tonumber(redis.call('ZSCORE', key.since, member))
  if job.is_complete and state_ ~= 'done' then
    state_, since = 'done', job.completed + job.unattended
  elseif state_ == 'blocked' then
    since = last_event + outage + config.idle_timeout_ms
  end
  local row = {member = member, state = state_, since_ms = since, watermark = watermark_of(member),
    max_event_time = max_event_time or nil, last_event_ms = last_event + outage,
    lag = state_ ~= 'done' and policy.lags_of({member})[1] or nil}
  local fields = {}
  for i, class in ipairs(CLASSES) do fields[i] = class .. ' ' .. member end
  for i, rows in ipairs(redis.call('HMGET', key.rows, unpack(fields))) do row[CLASSES[i]] = rows or nil end
  return {map = row}
end

-- Return the slowest active substreams in order, without placeholders.
local function find_slowest()
  if args.slowest == 0 then return {} end
  local found, limit = {}, args.slowest + redis.call('SCARD', key.missing_queries)
  for _, row in ipairs(emission.slowest_first(emission.active_sets(), limit, args.after)) do
    if #found < args.slowest and policy.name_of(row.member) ~= '' then found[#found + 1] = row.member end
  end
  return found
end

-- Return the members of a list, and the substream that holds the watermark.
local function with_holder(listed)
  local holder, found = emission.held_by() or {}, {unpack(listed)}
  local member = holder.substream and holder.query .. '/' .. holder.substream
  for _, one in ipairs(listed) do
    if one == member then return found end
  end
  found[#found + 1] = member
  return found
end

local members, is_complete, slowest, rows = args.members, false, {}, {}
if membership.count() <= (args.most or 0) then
  members, is_complete = membership.all(), true
elseif args.slowest then
  slowest = find_slowest()
  members = with_holder(slowest)
end
members = membership.split(members)
local event_times = max_event_times.of(members)
for i, member in ipairs(members) do rows[i] = row_of(member, event_times[i]) end
return emission.watermark_state({config = redis.call('HGET', key.job, 'config'), max_watermark = job.max_watermark,
  is_complete = is_complete, rows = rows, slowest = slowest})
end
commands.sweep = function()
-- Evaluate a job because time has passed. Reads of a watermark also use this command, because watermarks may follow the
-- clock. Runs in steps (see parts/steps) if the evaluation must poll many substreams.
--
-- args   is_read (absent: false)
-- reply  unfinished (true: another sweep is due immediately)
local job = state.job
return steps.run({
  function(record)
    reply.load()
    record.polls, record.lowest = advancing.needs_steps(), math.huge
    if record.polls then evaluate.exclude() end
  end,
  function(record)
    if not record.polls then return end
    local remain = steps.each(record, advancing.sets(), function(members)
      record.lowest = math.min(record.lowest, advancing.poll(members, math.huge))
    end)
    if not remain then advancing.record_polls(record.lowest) end
    return remain
  end,
  function()
    if args.is_read then evaluate.sweep_for_read() else evaluate.sweep() end
    return reply.finish({unfinished = job.evaluation_due and true or nil})
  end,
})
end
commands.timeline = function()
-- Read the samples of a job, oldest first.
--
-- args   interval_ms, limit (number of samples)
-- reply  samples (texts, see parts/timeline)
clock.load()
return emission.watermark_state({samples = redis.call('LRANGE', key.timeline(args.interval_ms), -args.most, -1)})
end
commands.watch = function()
-- Sweep a job, and return its records after a record that the client has.
--
-- args   after (id of that record; absent: none), limit
-- reply  newest (id of the newest record), known (the record that the client has; empty if the journal no longer
--        keeps it, and later records may be lost), records (the later records); records are entries of the stream
reply.load()
evaluate.sweep_for_read()
local found = reply.finish()
local known = args.after and redis.call('XRANGE', key.journal, args.after, args.after) or {}
found.map.newest = redis.call('XREVRANGE', key.journal, '+', '-', 'COUNT', 1)[1][1]
found.map.known = known
found.map.records = #known > 0 and redis.call('XRANGE', key.journal, '(' .. args.after, '+', 'COUNT', args.most) or {}
return found
end
return function(command, argument)
state.forget(command, argument)
return commands[command]()
end
end
-- Return the kept reply of an earlier attempt of this call.
local function known_reply()
for _, kept in ipairs(redis.call('LRANGE', key.replies, 0, -1)) do
local id, reply = unpack(cmsgpack.unpack(kept))
if id == args.call then return reply end
end
end
local function keep_reply(reply)
redis.call('RPUSH', key.replies, cmsgpack.pack({args.call, reply}))
redis.call('LTRIM', key.replies, -constants.REPLIES_KEPT, -1)
redis.call('PEXPIRE', key.replies, constants.REPLIES_KEPT_MS)
end
local run
local function call(command, keys, argument)
run = run or create()
key.enter(keys)
args = cmsgpack.unpack(argument)
local known = args.call and known_reply()
if known then return known end
local ok, result = pcall(run, command, argument)
if ok then
if args.call then keep_reply(result) end
return result
end
if type(result) == 'table' and result.refused then return {map = result.refused} end
if type(result) == 'string' and string.find(result, '^%u+ ') then result = {err = result} end  -- keeps its code
error(result, 0)
end
redis.register_function{function_name = 'tidegate_2192540adc3d5a3c_begin', flags = {},
callback = function(keys, arguments) return call('begin', keys, arguments[1]) end}
redis.register_function{function_name = 'tidegate_2192540adc3d5a3c_commit', flags = {},
callback = function(keys, arguments) return call('commit', keys, arguments[1]) end}
redis.register_function{function_name = 'tidegate_2192540adc3d5a3c_complete', flags = {},
callback = function(keys, arguments) return call('complete', keys, arguments[1]) end}
redis.register_function{function_name = 'tidegate_2192540adc3d5a3c_completeness', flags = {'no-writes'},
callback = function(keys, arguments) return call('completeness', keys, arguments[1]) end}
redis.register_function{function_name = 'tidegate_2192540adc3d5a3c_configure', flags = {},
callback = function(keys, arguments) return call('configure', keys, arguments[1]) end}
redis.register_function{function_name = 'tidegate_2192540adc3d5a3c_confirm', flags = {'allow-oom'},
callback = function(keys, arguments) return call('confirm', keys, arguments[1]) end}
redis.register_function{function_name = 'tidegate_2192540adc3d5a3c_declare', flags = {},
callback = function(keys, arguments) return call('declare', keys, arguments[1]) end}
redis.register_function{function_name = 'tidegate_2192540adc3d5a3c_delete', flags = {'allow-oom'},
callback = function(keys, arguments) return call('delete', keys, arguments[1]) end}
redis.register_function{function_name = 'tidegate_2192540adc3d5a3c_distribution', flags = {'no-writes'},
callback = function(keys, arguments) return call('distribution', keys, arguments[1]) end}
redis.register_function{function_name = 'tidegate_2192540adc3d5a3c_done', flags = {},
callback = function(keys, arguments) return call('done', keys, arguments[1]) end}
redis.register_function{function_name = 'tidegate_2192540adc3d5a3c_due', flags = {'allow-oom'},
callback = function(keys, arguments) return call('due', keys, arguments[1]) end}
redis.register_function{function_name = 'tidegate_2192540adc3d5a3c_evict', flags = {},
callback = function(keys, arguments) return call('evict', keys, arguments[1]) end}
redis.register_function{function_name = 'tidegate_2192540adc3d5a3c_explain', flags = {},
callback = function(keys, arguments) return call('explain', keys, arguments[1]) end}
redis.register_function{function_name = 'tidegate_2192540adc3d5a3c_heartbeat', flags = {},
callback = function(keys, arguments) return call('heartbeat', keys, arguments[1]) end}
redis.register_function{function_name = 'tidegate_2192540adc3d5a3c_history', flags = {'no-writes'},
callback = function(keys, arguments) return call('history', keys, arguments[1]) end}
redis.register_function{function_name = 'tidegate_2192540adc3d5a3c_hold', flags = {},
callback = function(keys, arguments) return call('hold', keys, arguments[1]) end}
redis.register_function{function_name = 'tidegate_2192540adc3d5a3c_idle', flags = {},
callback = function(keys, arguments) return call('idle', keys, arguments[1]) end}
redis.register_function{function_name = 'tidegate_2192540adc3d5a3c_late', flags = {'no-writes'},
callback = function(keys, arguments) return call('late', keys, arguments[1]) end}
redis.register_function{function_name = 'tidegate_2192540adc3d5a3c_put', flags = {},
callback = function(keys, arguments) return call('put', keys, arguments[1]) end}
redis.register_function{function_name = 'tidegate_2192540adc3d5a3c_queries', flags = {'no-writes'},
callback = function(keys, arguments) return call('queries', keys, arguments[1]) end}
redis.register_function{function_name = 'tidegate_2192540adc3d5a3c_release', flags = {},
callback = function(keys, arguments) return call('release', keys, arguments[1]) end}
redis.register_function{function_name = 'tidegate_2192540adc3d5a3c_reopen', flags = {},
callback = function(keys, arguments) return call('reopen', keys, arguments[1]) end}
redis.register_function{function_name = 'tidegate_2192540adc3d5a3c_report', flags = {},
callback = function(keys, arguments) return call('report', keys, arguments[1]) end}
redis.register_function{function_name = 'tidegate_2192540adc3d5a3c_reset', flags = {},
callback = function(keys, arguments) return call('reset', keys, arguments[1]) end}
redis.register_function{function_name = 'tidegate_2192540adc3d5a3c_restore', flags = {},
callback = function(keys, arguments) return call('restore', keys, arguments[1]) end}
redis.register_function{function_name = 'tidegate_2192540adc3d5a3c_resume', flags = {'allow-oom'},
callback = function(keys, arguments) return call('resume', keys, arguments[1]) end}
redis.register_function{function_name = 'tidegate_2192540adc3d5a3c_retire', flags = {},
callback = function(keys, arguments) return call('retire', keys, arguments[1]) end}
redis.register_function{function_name = 'tidegate_2192540adc3d5a3c_stage', flags = {},
callback = function(keys, arguments) return call('stage', keys, arguments[1]) end}
redis.register_function{function_name = 'tidegate_2192540adc3d5a3c_staged', flags = {'no-writes'},
callback = function(keys, arguments) return call('staged', keys, arguments[1]) end}
redis.register_function{function_name = 'tidegate_2192540adc3d5a3c_status', flags = {'no-writes'},
callback = function(keys, arguments) return call('status', keys, arguments[1]) end}
redis.register_function{function_name = 'tidegate_2192540adc3d5a3c_substreams', flags = {'no-writes'},
callback = function(keys, arguments) return call('substreams', keys, arguments[1]) end}
redis.register_function{function_name = 'tidegate_2192540adc3d5a3c_sweep', flags = {},
callback = function(keys, arguments) return call('sweep', keys, arguments[1]) end}
redis.register_function{function_name = 'tidegate_2192540adc3d5a3c_timeline', flags = {'no-writes'},
callback = function(keys, arguments) return call('timeline', keys, arguments[1]) end}
redis.register_function{function_name = 'tidegate_2192540adc3d5a3c_watch', flags = {},
callback = function(keys, arguments) return call('watch', keys, arguments[1]) end}
redis.register_function{function_name = 'tidegate_2192540adc3d5a3c_together', flags = {},
callback = function(keys, arguments)
local replies = {}
for i = 1, #arguments, 2 do replies[#replies + 1] = call(arguments[i], keys, arguments[i + 1]) end
return replies
end}
redis.register_function{function_name = 'tidegate_2192540adc3d5a3c_reads_together', flags = {'no-writes'},
callback = function(keys, arguments)
local replies = {}
for i = 1, #arguments, 2 do replies[#replies + 1] = call(arguments[i], keys, arguments[i + 1]) end
return replies
end}
