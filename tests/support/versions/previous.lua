#!lua name=tidegate_59fcc3510505d125
local key = {wake = 'tidegate:wake:', of_job = {'max_event_times', 'active', 'clock_driven', 'constant', 'advancing', 'next_change', 'frozen', 'since', 'forced_idle', 'done', 'rows', 'missing_queries', 'last_seen', 'delays', 'learned_lags', 'hours', 'queries', 'query_names', 'open_batches', 'open_pins', 'holds', 'hold_expiry', 'hold_reasons'}, of_query = {'last_events', 'idle', 'query', 'pinned_watermarks', 'pinned_batches', 'fenced_runs', 'staged'}}
function key.timeline(interval) return key.job .. ':timeline:' .. interval end
function key.lagged(limit) return key.job .. ':lagged:' .. limit end
function key.last_events(query) return key.job .. ':last_events:' .. query end
function key.idle(query) return key.job .. ':idle:' .. query end
function key.query(query) return key.job .. ':query:' .. query end
function key.pinned_watermarks(query) return key.job .. ':pinned_watermarks:' .. query end
function key.pinned_batches(query) return key.job .. ':pinned_batches:' .. query end
function key.fenced_runs(query) return key.job .. ':fenced_runs:' .. query end
function key.staged(query) return key.job .. ':staged:' .. query end
function key.hour_rows(hour) return key.job .. ':hour_rows:' .. hour end
function key.hour_late(hour) return key.job .. ':hour_late:' .. hour end
function key.enter(keys)
if keys[1] == key.job then return end
key.job, key.sweeps, key.jobs = keys[1], keys[2], keys[3]
key.name = string.match(keys[1], '{(.*)}$') or string.match(keys[1], '}/(.*)$')
key.journal = key.job .. ':journal'
for _, name in ipairs(key.of_job) do key[name] = key.job .. ':' .. name end
end
local constants = {RECORDS_KEPT = 10000, RECORDS_KEPT_MS = 604800000, NAMES_KEPT = 20, HOUR = 3600000, HOURS_KEPT = 168, ENTRIES_KEPT = 50000, PINNED_WATERMARKS_KEPT = 100, TOUCH_MS = 5000, SAMPLE_INTERVALS_MS = {15000, 300000}, SAMPLES_KEPT = {240, 288}, LIMITS = {'idle_timeout_ms', 'max_retention_ms', 'query_timeout_ms', 'max_batch_hold_ms', 'max_delay_ms', 'max_lull_ms', 'wall_clock_lag_ms'}, POLICY_LIMITS = {'max_delay_ms', 'max_lull_ms', 'wall_clock_lag_ms'}, ROW = 1000, MAX_WEIGHT = 10000000000000, MAX_BUCKETS = 640, STEPS = 8, HIGHEST_BUCKET = 1838, GAMMA = 1.02020202020202, DECAY = {1.0, 0.9170040432046712, 0.8408964152537145, 0.7711054127039704, 0.7071067811865476, 0.6484197773255048, 0.5946035575013605, 0.5452538663326288}, ROWS_BEYOND = 10, SURPRISE = 3.0, MARGIN = 0.5, MAX_WIDENING = 4, NARROWING = 4, MAX_STEPS = 64}
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
-- command. job.unattended is the total time in which no coordinator evaluated the job. job.observed_now is the observed
-- time of the job, job.now - job.unattended. Limits on silence are in observed time.
--
-- changes describes the current command: before (C and W before it), passed (members that a limit let C pass), is_recorded
-- (the journal has a new record), is_plain (see state.look_for_rare_sets), raised (see target_completeness.raise), known
-- (see observation.known), outage and previous_now (see clock.advance), held_by (the holder of W), queries and stored_queries (see
-- parts/queries).
local state = {job = {}, config = {}, changes = {}}
local job, config = state.job, state.config
local stored  -- the packed text of the job, as read
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

-- Read the configuration from its stored text. The decoded configurations of the last jobs stay in memory.
function state.configure(compiled)
  if not decoded[compiled] then
    if decoded_bytes + #compiled > MAX_DECODED_BYTES then decoded, decoded_bytes = {}, 0 end
    decoded[compiled], decoded_bytes = decode(compiled), decoded_bytes + #compiled
  end
  if in_force == decoded[compiled] then return end
  in_force = nil  -- in case the server ends the function before the copy is complete
  replace(config, decoded[compiled])
  in_force = decoded[compiled]
end

-- Make the next call read the configuration, even if its text is unchanged. A command that changes config calls this.
function state.forget_config()
  in_force = nil
end

-- Read the job; return 'live', 'deleted', or nil if it was never created.
function state.read()
  local found = redis.call('HMGET', key.job, 'state', 'compiled_config', 'scalars')
  stored = found[3]
  replace(job, stored and cmsgpack.unpack(stored) or {})
  if found[1] == 'live' then state.configure(found[2]) end
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
  replace(job, {incarnation = incarnation, state_epoch = epoch, now = now, unattended = unattended,
    observed_now = now - unattended, coalesced_watermark_since = now, watermark_since = now, evaluations = 0,
    lowest_clock_driven = math.huge, scheduled = job.scheduled, emissions = job.emissions, throttled = job.throttled,
    last_contact = job.last_contact, revision = job.revision})
end

-- Write the job, if it has changed.
function state.save()
  local packed = cmsgpack.pack(job)
  if packed ~= stored then redis.call('HSET', key.job, 'scalars', packed) end
end

-- Refuse a command for another version of the configuration. An absent field of the version stands for any value.
function state.check_version(version)
  if (version.state_epoch or job.state_epoch) ~= job.state_epoch
    or (version.revision or job.revision) ~= job.revision then
    values.refuse('revision_mismatch', {revision = job.revision})
  end
end

-- Replace the job by a tombstone.
function state.delete()
  redis.call('DEL', key.job)
  redis.call('HSET', key.job, 'state', 'deleted', 'deleted', job.now, 'scalars',
    cmsgpack.pack({incarnation = job.incarnation}))
end

-- Clear the values that describe the previous command.
function state.forget()
  state.changes = {passed = {}, raised = {}, known = {}, queries = {}, stored_queries = {}}
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

-- Record a change of some substreams of a query.
function journal.write_substreams(kind, query, members)
  journal.write(kind, 'query', query, 'count', #members, 'substreams', journal.named(members))
end

-- Record an operator's command.
function journal.write_action(action, query, members, ...)
  local count = members and #members > 0 and #members or nil
  journal.write('action', 'action', action, 'query', query, 'actor', args.actor, 'reason', args.reason, 'count', count,
    'substreams', members and journal.named(members), ...)
end

-- Count one action of a limit.
function journal.count_limit(limit)
  redis.call('HINCRBY', key.job, 'limit ' .. limit, 1)
end

return journal
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

local function remove(command, name, members)
  for first = 1, #members, CHUNK do
    redis.call(command, name, unpack(members, first, math.min(first + CHUNK - 1, #members)))
  end
end

function bulk.zrem(name, members)
  remove('ZREM', name, members)
end

function bulk.hdel(name, fields)
  remove('HDEL', name, fields)
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

function policy.query_of(member)
  return string.sub(member, 1, string.find(member, '/', 1, true) - 1)
end

function policy.name_of(member)
  return string.sub(member, string.find(member, '/', 1, true) + 1)
end

-- Return whether a name matches a pattern. pieces: the texts between the * of the pattern, which are searched from left
-- to right.
local function matches(pieces, name)
  local first, last = pieces[1], pieces[#pieces]
  if #pieces == 1 then return name == first end
  if string.sub(name, 1, #first) ~= first then return false end
  local at = #first + 1
  for i = 2, #pieces - 1 do
    local from, to = string.find(name, pieces[i], at, true)
    if not from then return false end
    if to then at = math.max(to + 1, from) end
  end
  return #name - at + 1 >= #last and (last == '' or string.sub(name, -#last) == last)
end

-- Return the policy of a member: the first override in `policies` that matches, or else the policy of the job.
function policy.among(policies, member)
  local default = policies[1]
  if #policies == 1 and string.byte(member, -1) ~= SLASH then return default end
  local name = policy.name_of(member)
  if name == '' then return policy.PLACEHOLDER end
  for i = 2, #policies do
    if matches(policies[i].pieces, name) then return policies[i] end
  end
  return default
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
-- The active substreams whose policies follow the clock, in sorted sets, so that an evaluation costs O(log n):
--
--   key.constant    member -> watermark, while it is constant
--   key.advancing   member -> watermark - observed time, while it advances with the clock
--   key.next_change member -> observed time at which it starts to advance or takes its next step
--
-- job.lowest_clock_driven is the lowest own watermark of these substreams. An evaluation raises this value to
-- max(lowest, min(P, cap)), where P is the lowest policy watermark. The result is exact unless a substream has left
-- these sets. If a substream has left and the cap is below P, the evaluation polls each substream, as in
-- tidegate.domain. If job.evaluate_each is set, the next evaluation polls each substream.
local number, score, highest, above = values.number, values.score, values.highest, values.above
local job, config = state.job, state.config
local advancing = {}
local MAX_CAPPED, MAX_GAPS = 16, 8

-- Write the state of an active substream, and add it to its sorted sets.
function advancing.place(member, s, rule)
  clock_driven.write(member, s)
  local reading = highest(s.own, s.reached)
  local change = clock_driven.next_change(s, rule, reading)
  redis.call('ZREM', key.advancing, member)
  redis.call('ZADD', key.constant, score(reading), member)
  if change then
    redis.call('ZADD', key.next_change, score(change), member)
  else
    redis.call('ZREM', key.next_change, member)
  end
end

function advancing.remove(members)
  for _, name in ipairs({key.constant, key.advancing, key.next_change}) do bulk.zrem(name, members) end
  for _, limit in ipairs(constants.POLICY_LIMITS) do bulk.zrem(key.lagged(limit), members) end
end

-- Call visit(member, s, rule, max_event_time) for each member.
local function each(members, visit)
  local event_times, lines = bulk.zmscore(key.max_event_times, members), bulk.hmget(key.clock_driven, members)
  for i, member in ipairs(members) do
    local rule = policy.of(member)
    visit(member, clock_driven.read(lines[i]), rule, number(event_times[i]))
  end
end

-- Remove active members; return their watermarks, which then stay constant.
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

-- Add frozen members again, with their stored state.
function advancing.thaw(members)
  each(members, function(member, s, rule, max_event_time)
    s.since = job.evaluations
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

-- Materialize each member, and call visit(member, s, rule, max_event_time).
function advancing.each_materialized(visit)
  local members = redis.call('ZRANGE', key.constant, 0, -1)
  for _, member in ipairs(redis.call('ZRANGE', key.advancing, 0, -1)) do members[#members + 1] = member end
  each(members, function(member, s, rule, max_event_time)
    clock_driven.materialize(s, rule, max_event_time)
    visit(member, s, rule, max_event_time)
  end)
end

-- Poll each member.
local function evaluate_each(cap)
  job.lowest_clock_driven = math.huge
  advancing.each_materialized(function(member, s, rule, max_event_time)
    clock_driven.poll(s, rule, max_event_time)
    if s.reached then s.own = highest(s.own, math.min(s.reached, cap)) end
    s.since = job.evaluations + 1
    advancing.place(member, s, rule)
    job.lowest_clock_driven = math.min(job.lowest_clock_driven, s.own or -math.huge)
    job.max_watermark = highest(s.own, job.max_watermark)
  end)
  clock_driven.clear_capped()
  job.evaluate_each = nil
end

-- Move at most CHUNK members that are due to advance or to take a step; return their number.
local function take_changes()
  local due = redis.call('ZRANGE', key.next_change, '-inf', job.observed_now, 'BYSCORE', 'LIMIT', 0, bulk.CHUNK)
  if #due == 0 then return 0 end
  local moved, scored = {}, {}  -- the members that begin to advance
  each(due, function(member, s, rule, max_event_time)
    if rule.max_delay_ms then
      clock_driven.materialize(s, rule, max_event_time)
      clock_driven.poll(s, rule, max_event_time)
      return advancing.place(member, s, rule)
    end
    local _, distance = clock_driven.next_change(s, rule, highest(s.own, s.reached))
    if math.abs(distance) > values.HIGHEST then  -- no exact score: constant until the next evaluation
      redis.call('ZADD', key.constant, score(highest(s.own, clock_driven.now(s, rule))), member)
      redis.call('ZADD', key.next_change, score(job.observed_now + 1), member)
    else
      local at = #moved + 1
      moved[at], scored[2 * at - 1], scored[2 * at] = member, distance, member
    end
  end)
  bulk.zrem(key.next_change, moved)
  bulk.zrem(key.constant, moved)
  bulk.zadd(key.advancing, nil, scored)
  return #due
end

-- Return the lowest and the highest current watermark, infinite if there are no members. A missing watermark counts as
-- -inf.
local function extremes()
  local lowest, top = math.huge, -math.huge
  local member, reading = values.lowest_of(key.constant)
  if member then
    lowest = reading or -math.huge
    local _, last = values.highest_of(key.constant)
    top = last or -math.huge
  end
  member, reading = values.lowest_of(key.advancing)
  if member then
    lowest = math.min(lowest, reading + job.observed_now, values.HIGHEST)
    local _, last = values.highest_of(key.advancing)
    top = math.max(top, math.min(last + job.observed_now, values.HIGHEST))
  end
  return lowest, top
end

local function note_gap()
  local shortest = clock_driven.shortest_history()
  if not shortest or not job.evaluated or job.observed_now - job.evaluated <= shortest then return end
  job.gaps = clock_driven.gaps()
  table.insert(job.gaps, {from = job.evaluated, to = job.observed_now})
  if #job.gaps >= MAX_GAPS then job.evaluate_each = 1 end
end

local function evaluate_sets(cap, has_left)
  note_gap()
  local is_unfinished = take_changes() == bulk.CHUNK
  local lowest, top = extremes()
  if has_left and cap < lowest and lowest < math.huge then
    evaluate_each(cap)
    return is_unfinished
  end
  job.lowest_clock_driven = lowest == math.huge and lowest or math.max(job.lowest_clock_driven, math.min(lowest, cap))
  if top > -math.huge then job.max_watermark = highest(math.min(top, cap), job.max_watermark) end
  if clock_driven.push_capped(cap) >= MAX_CAPPED then job.evaluate_each = 1 end
  return is_unfinished
end

-- Evaluate the members. cap: limit on their watermarks (infinite: no limit). has_left: a member became idle in this
-- command. Return the lowest own watermark (infinite if there are no members), and whether another evaluation is due.
function advancing.evaluate(cap, has_left)
  local is_unfinished = false
  if not config.has_clock_driven or redis.call('EXISTS', key.clock_driven) == 0 then
    job.lowest_clock_driven = math.huge
  else
    if job.unattended ~= job.unattended_at_evaluation then job.evaluate_each = 1 end
    if job.evaluate_each then
      evaluate_each(cap)
    else
      is_unfinished = evaluate_sets(cap, has_left)
    end
    if cap < math.huge then
      local _, top = extremes()
      is_unfinished = is_unfinished or top > cap
    end
  end
  job.evaluated, job.unattended_at_evaluation = job.observed_now, job.unattended
  job.evaluations = job.evaluations + 1
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

-- Remove active members from the merge and keep their watermarks; return whether any member follows the clock.
function idleness.freeze(members)
  local flat, clock_driven_ones = policy.by_kind(members)
  local event_times = max_event_times.of(flat)
  bulk.zadd_each(key.frozen, bulk.zmscore(key.active, flat), flat)
  bulk.zrem(key.active, flat)
  max_event_times.store(flat, event_times)
  if #clock_driven_ones > 0 then
    bulk.zadd_each(key.frozen, advancing.freeze(clock_driven_ones), clock_driven_ones)
  end
  return #clock_driven_ones > 0
end

-- Make active members of a query idle. last_events: their last events. Return whether any member follows the clock.
function idleness.set_idle(query, members, last_events)
  local has_left = idleness.freeze(members)
  bulk.zadd_each(key.idle(query), last_events, members)
  bulk.zrem(key.last_events(query), members)
  bulk.zadd_all(key.since, job.now, members)
  return has_left
end

-- Make members of a query idle whose last event is at or before `until_`. forced: the reason is not silence.
-- one_chunk: at most CHUNK members. Return whether any member follows the clock.
local function make_idle(query, until_, limit, forced, one_chunk)
  local count, first, has_left = 0, {}, false
  repeat
    local found = redis.call('ZRANGE', key.last_events(query), '-inf', until_, 'BYSCORE', 'LIMIT', 0, bulk.CHUNK,
      'WITHSCORES')
    local members, last_events = {}, {}
    for i = 1, #found, 2 do
      members[#members + 1], last_events[#last_events + 1] = found[i], found[i + 1]
      if #first < constants.NAMES_KEPT then first[#first + 1] = found[i] end
    end
    if #members > 0 then
      has_left = idleness.set_idle(query, members, last_events) or has_left
      if forced then bulk.zadd_all(key.forced_idle, 0, members) end
    end
    count = count + #members
  until #members < bulk.CHUNK or one_chunk
  if count > 0 then
    journal.count_limit(limit)
    journal.write('idle', 'limit', limit, 'query', query, 'count', count, 'substreams', journal.named(first))
  end
  return has_left
end

-- Make substreams of a query idle that are silent by its idle clock.
function idleness.expire(query, idle_clock, one_chunk)
  if not config.idle_timeout_ms or not idle_clock or job.is_complete then return false end
  return make_idle(query, idle_clock - config.idle_timeout_ms, 'idle_timeout_ms', false, one_chunk)
end

-- Make all substreams of a query idle after query_timeout_ms without a call.
function idleness.time_out_queries()
  if not config.query_timeout_ms then return false end
  local has_left, last = false, job.observed_now - config.query_timeout_ms
  for _, query in ipairs(redis.call('ZRANGE', key.last_seen, '-inf', last, 'BYSCORE')) do
    redis.call('ZREM', key.last_seen, query)
    has_left = make_idle(query, math.huge, 'query_timeout_ms', true) or has_left
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
  if #clock_driven_ones > 0 then advancing.thaw(clock_driven_ones) end
  bulk.zadd(key.last_events(query), nil, last_events)
  for _, name in ipairs({key.frozen, key.idle(query), key.forced_idle}) do bulk.zrem(name, active) end
  bulk.zadd_all(key.since, job.now, active)
  return active
end

-- Record events of the members: idle members become active.
function idleness.reactivate(query, members)
  if state.changes.is_plain or redis.call('EXISTS', key.idle(query)) == 0 then return end
  local active = idleness.activate(query, members, true)
  if #active > 0 then journal.write_substreams('active', query, active) end
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

function holds.expires(hold)
  local expires = number(redis.call('ZSCORE', key.hold_expiry, hold))
  return expires and expires + state.job.unattended
end

-- Return all holds, lowest first.
function holds.in_order()
  local found = {}
  for _, hold in ipairs(redis.call('ZRANGE', key.holds, 0, -1)) do
    found[#found + 1] = {map = {hold = hold, at_most = number(redis.call('ZSCORE', key.holds, hold)),
      expires_ms = holds.expires(hold), reason = redis.call('HGET', key.hold_reasons, hold)}}
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
    stored[name] = packed or cmsgpack.pack(loaded[name])
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
local clock = (function()
-- The clock of a job, which never goes back and detects outages. Observed time excludes outages.
local refuse = values.refuse
local job = state.job
local clock = {}

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

-- Advance the clock of the job. changes.outage: the duration of an outage that this command has detected.
function clock.advance(now)
  local gap = now - job.now
  local is_outage = args.unattended_after_ms and gap > args.unattended_after_ms
  -- A job with a next change is swept regularly, so a longer gap shows that no coordinator ran.
  if is_outage and job.next_change then job.unattended, state.changes.outage = job.unattended + gap, gap end
  state.changes.previous_now = job.now
  job.now = math.max(now, job.now)
  job.observed_now = job.now - job.unattended
end

-- Load the live job of a command and advance its clock.
function clock.load()
  local found = state.read()
  if not found then refuse('job_not_found') end
  if found == 'deleted' then refuse('job_deleted') end
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
  job.evaluation_due = is_unfinished and 1 or nil
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

local function add_to_pools(known, rows, ahead)
  local pooled, behind_merged = {}, {}
  for i, member in ipairs(known) do
    for bucket, count in pairs(rows[member]) do
      pooled[bucket] = (pooled[bucket] or 0) + count
      if ahead[i] then
        local behind = bucket > 0 and ahead[i] >= 0 and sketch.bucket_of(sketch.typical(bucket) - ahead[i]) or 0
        behind_merged[behind] = (behind_merged[behind] or 0) + count
      end
    end
  end
  local pools = {pool = pooled, merged = behind_merged}
  for field, together in pairs(pools) do
    local s = sketch.unpack(redis.call('HGET', key.delays, field))
    sketch.decay_to(s, job.max_event_time)
    sketch.add(s, together)
    redis.call('HSET', key.delays, field, sketch.pack(s))
    pools[field] = s
  end
  return pools.pool
end

-- Add the delays of rows, and update learned lags. merged: C without the throttle, when the batch began or before the
-- report.
function delays.measure(query, members, columns, merged)
  local names, rows = rows_of(members, columns)
  local known, known_times = known_of(names)
  if #known == 0 then return end
  local pool = add_to_pools(known, rows, ahead_of(known, known_times, merged))
  local relearning = {}
  for i, member in ipairs(known) do
    local own = sketch.unpack(redis.call('HGET', key.delays, member))
    local steps = sketch.decay_to(own, known_times[i])
    sketch.add(own, rows[member])
    if policy.is_target(policy.of(member))
      and target_completeness.learn(member, known_times[i], rows[member], own, pool, steps) then
      relearning[#relearning + 1] = member
    end
    redis.call('HSET', key.delays, member, sketch.pack(own))
  end
  if #relearning > 0 then journal.write_substreams('relearning', query, relearning) end
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
    or redis.call('ZCARD', key.frozen) > redis.call('ZCARD', key.done) then
    journal.write('all_idle')
  end
end

local function run(cap, is_sweep, has_left)
  if job.is_complete then return end
  holds.expire()
  has_left = idleness.time_out_queries() or has_left
  has_left = idleness.expire('', job.observed_now, cap ~= nil) or has_left
  target_completeness.raise()
  release_overdue()
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

-- Evaluate the job after a report without a batch. cap: the lowest event time of the report. To bound the cost of a
-- report, at most CHUNK pending changes of each kind are applied. The other changes are due immediately.
function evaluate.after_report(cap)
  run(cap, false)
end

-- Evaluate the job because time has passed. Retention acts in sweeps only.
function evaluate.sweep()
  run(nil, true)
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
  if redis.call('EXISTS', key.advancing) == 1 then changes[#changes + 1] = job.observed_now + 1 end
  -- The clock advances during an outage, so substreams that follow the clock are due after the outage.
  local after_outage = job.unattended_at_evaluation and job.unattended_at_evaluation ~= job.unattended
  if after_outage and redis.call('EXISTS', key.constant, key.advancing) > 0 then
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

-- Schedule the next sweep. A job with a next change is swept at least every TOUCH_MS, so that a longer gap shows an
-- outage.
function schedule.update()
  job.next_change = schedule.next_change()
  if args.now_ms then return end
  if not job.next_change then
    if job.scheduled then redis.call('ZREM', key.sweeps, key.name) end
    job.scheduled = nil
    return
  end
  local due = math.min(math.max(job.next_change + job.unattended, job.now), job.now + constants.TOUCH_MS)
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

-- Append a sample for each interval that has none yet. A sample is '<time> <watermark> <reason> <query> <name>'.
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
local staging = (function()
-- Staging: the reports of open batches, which take effect when their batch commits. See tidegate.domain.staging.
--
-- The hash of a query contains a value for each report: its order and the packed report. The field is the digest of the
-- report, so that a repeated report replaces itself.
local number = values.number
local staging = {}

-- Store a report: partition; members, event_times, watermarks; counted, rows, future_rows; delayed, delays (columns).
function staging.add(query, report)
  query.staged = query.staged + #report.counted + #report.delayed + 1
  local packed = cmsgpack.pack(report)
  redis.call('HSET', key.staged(query.name), redis.sha1hex(packed), cmsgpack.pack(query.staged) .. packed)
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

-- Return the staged reports of a query: members with their highest event_times and watermarks (columns, false: none),
-- rows, future_rows and delays (by partition and member), and count (the number of values in rows).
function staging.read(query)
  local reports = redis.call('HVALS', key.staged(query))
  for i, packed in ipairs(reports) do
    local order, report = cmsgpack.unpack(packed)
    report.order, reports[i] = order, report
  end
  table.sort(reports, function(a, b) return a.order < b.order end)
  local staged = {members = {}, event_times = {}, watermarks = {}, rows = {}, future_rows = {}, delays = {},
    count = 0}
  local event_times, watermarks, is_listed = {}, {}, {}
  for _, report in ipairs(reports) do
    raise_each(event_times, report.members, report.event_times)
    raise_each(watermarks, report.members, report.watermarks)
    staged.count = staged.count + set_each(staged.rows, report.partition, report.counted, report.rows)
    set_each(staged.future_rows, report.partition, report.counted, report.future_rows)
    set_each(staged.delays, report.partition, report.delayed, report.delays)
    for _, member in ipairs(report.counted) do
      if not is_listed[member] then
        is_listed[member], staged.members[#staged.members + 1] = true, member
      end
    end
  end
  for i, member in ipairs(staged.members) do
    staged.event_times[i], staged.watermarks[i] = event_times[member] or false, watermarks[member]
  end
  return staged
end

return staging
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

-- Refuse watermarks without event times, unless the policies of their members accept watermarks.
function observation.check_event_times(members, event_times, watermarks)
  if not next(watermarks) then return end
  local missing = {}
  for i, member in ipairs(members) do
    if not number(event_times[i]) and number(watermarks[i]) and not accepts_watermarks(member) then
      missing[#missing + 1] = member
    end
  end
  if #missing > 0 then values.refuse('event_time_missing', {substreams = missing}) end
end

-- Refuse members beyond the limit of the job. Staged substreams of open batches count towards the limit; placeholders
-- do not count.
function observation.check_room(members)
  local limit = args.max_substreams
  if not limit then return end
  local size, coming = membership.count(), #members
  local open = state.changes.is_plain and {} or redis.call('ZRANGE', key.open_batches, 0, -1)
  for _, query in ipairs(open) do coming = coming + queries.get(query).staged end
  if size + coming <= limit then return end
  size = size - redis.call('SCARD', key.missing_queries)
  if size + coming <= limit then return end
  local new, is_new = 0, {}
  local function count(some)
    local known = membership.known(some)
    for i, member in ipairs(some) do
      if not known[i] and not is_new[member] then new, is_new[member] = new + 1, true end
    end
  end
  count(members)
  if new == 0 then return end
  for _, query in ipairs(open) do count(staging.read(query).members) end
  if size + new > limit then values.refuse('too_many_substreams', {limit = limit}) end
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

-- Count and remove entries too far ahead of the clock; return the remaining columns. min_event_times may be nil.
function observation.set_aside_future(query, members, event_times, watermarks, min_event_times)
  local latest = observation.latest_event_time()
  if not latest then return members, event_times, watermarks, min_event_times end
  local future, ones, kept = {}, {}, {members = {}, event_times = {}, watermarks = {}, min_event_times = {}}
  for i, member in ipairs(members) do
    if (number(event_times[i]) or latest) > latest or (number(watermarks[i]) or latest) > latest then
      future[#future + 1], ones[#ones + 1] = member, 1
    else
      local at = #kept.members + 1
      kept.members[at], kept.event_times[at], kept.watermarks[at] = member, event_times[i], watermarks[i]
      kept.min_event_times[at] = min_event_times and min_event_times[i]
    end
  end
  if #future == 0 then return members, event_times, watermarks, min_event_times end
  observation.count_future(future, ones)
  journal.write_substreams('future', query, future)
  return kept.members, kept.event_times, kept.watermarks, kept.min_event_times
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

local function keep_alive(query, named, names, observed)
  if #names == #named then return idleness.reactivate(query, names) end
  local has_effect, awake, scored = {}, {}, {}
  for _, member in ipairs(names) do has_effect[member] = true end
  for i, reason in ipairs(bulk.zmscore(key.forced_idle, named)) do
    local member = named[i]
    if has_effect[member] or not reason or tonumber(reason) == 0 then awake[#awake + 1] = member end
    scored[#scored + 1], scored[#scored + 2] = observed, member
  end
  idleness.reactivate(query, awake)
  bulk.zadd(key.last_events(query), 'XX', scored)
end

-- Apply event times and watermarks to the substreams of a query. observed: the observed time of the query.
-- Return the members whose entries had an effect.
function observation.observe(query, members, event_times, watermarks, observed, named)
  local names, times, reported = effective(members, event_times, watermarks)
  keep_alive(query, named or members, names, observed)
  if #names == 0 then return names end
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
  return names
end

return observation
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
  redis.call('DEL', key.pinned_watermarks(query.name), key.pinned_batches(query.name))
  redis.call('DEL', key.staged(query.name))
  query.query_id, query.latest, query.open, query.begun, query.staged = query_id, nil, false, nil, 0
end

-- Let a run continue the latest batch; discard reports that another run staged.
function batches.take_over(query, run_id)
  if query.begun_by == run_id then return end
  redis.call('DEL', key.staged(query.name))
  query.begun_by, query.staged = run_id, 0
end

-- Open a batch and pin its watermark; delete all but the last `keep` pinned watermarks.
function batches.open_batch(query, batch_id, pinned, input_known_until, keep)
  local name = query.name
  query.latest, query.open, query.released, query.staged = batch_id, true, false, 0
  query.begun, query.begun_by, query.begun_merged = job.now, query.run_id, merge.merged_watermark()
  query.input_known_until = input_known_until
  redis.call('HSET', key.pinned_watermarks(name), batch_id, pinned or '')
  redis.call('ZADD', key.pinned_batches(name), batch_id, batch_id)
  redis.call('ZADD', key.open_pins, values.score(pinned), name)
  redis.call('ZADD', key.open_batches, job.observed_now, name)
  redis.call('DEL', key.staged(name))
  local old = redis.call('ZRANGE', key.pinned_batches(name), '-inf', batch_id - keep, 'BYSCORE')
  bulk.zrem(key.pinned_batches(name), old)
  bulk.hdel(key.pinned_watermarks(name), old)
end

-- Record that no batch of a query is open, and discard the staged reports.
local function close(query)
  redis.call('ZREM', key.open_pins, query.name)
  redis.call('ZREM', key.open_batches, query.name)
  query.open, query.staged = false, 0
  redis.call('DEL', key.staged(query.name))
end

-- Return the members and values of a table by partition and member, without the partitions.
local function columns_of(by_partition)
  local members, column = {}, {}
  for _, of_partition in pairs(by_partition) do
    for member, value in pairs(of_partition) do members[#members + 1], column[#column + 1] = member, value end
  end
  return members, column
end

-- Apply the staged reports of the open batch (see parts/staging) and close it; the caller must evaluate the job
-- afterwards. Return whether a substream that follows the clock has become idle.
function batches.commit_staged(query, staged)
  local name = query.name
  local delayed, rows_by_delay = columns_of(staged.delays)
  if #delayed > 0 then delays.measure(name, delayed, rows_by_delay, query.begun_merged) end
  observation.observe(name, staged.members, staged.event_times, staged.watermarks, (clock.observed_time(name)))
  if query.input_known_until then clock.observe_until(query, query.input_known_until) end
  for _, rows in pairs(staged.rows) do observation.count_rows('reported_rows', columns_of({rows})) end
  for _, rows in pairs(staged.future_rows) do observation.count_future(columns_of({rows})) end
  close(query)
  return idleness.expire(name, query.idle_clock)
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

-- Delete the first hours while the job has too many hours or entries. Always keep the last hour.
local function trim()
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
function ledger.add(of_job, hours, members, disposition)
  local latest, known, by_hour = observation.latest_event_time(), observation.known(members), {}
  for _, row in ipairs(of_job) do
    if not (latest and row.hour * constants.HOUR > latest) then
      local hour = values.text(row.hour)
      local columns = columns_of(hour)
      by_hour[row.hour] = columns
      redis.call('ZADD', key.hours, hour, hour)
      bulk.add(columns.rows, '', row.rows)
      if row.unattributed ~= '0' then bulk.add(columns.rows, '?', row.unattributed) end
      if row.updated ~= '0' then bulk.add(columns.late, 'updated ', row.updated) end
      if row.late ~= '0' then bulk.add(columns.late, disposition .. ' ', row.late) end
    end
  end
  for i, place in ipairs(hours.places) do
    local columns, member = by_hour[hours.hours[i]], members[place]
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
  if is_larger then trim() end  -- only new entries can exceed the limits, and trim() is slow
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

-- Refuse the command if a member is unknown.
function substreams.check_known(query, members)
  local _, unknown = membership.split(members)
  if #unknown > 0 then values.refuse('substream_not_found', {query = query, substreams = unknown}) end
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

-- Remove known members of a query, in any state.
function substreams.forget(query, members)
  if #members == 0 then return end
  local watermark, event_time = highest_of(members)
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
  local left_watermark, left_event_time = highest_of(membership.all())
  if event_time and event_time == job.max_event_time then job.max_event_time = left_event_time end
  if watermark and not above(job.max_watermark, watermark) then
    if above(job.max_watermark, left_watermark) then job.max_watermark = left_watermark end
    local latest = highest(job.max_watermark, job.coalesced_watermark)
    if above(job.merged_highest, latest) then job.merged_highest = latest end
  end
  for i, cell in ipairs(watermark and job.retention and job.retention.cells or {}) do
    if cell and cell <= watermark then job.retention.cells[i] = false end
  end
end

-- Return all members of a query, including those that are done, without its placeholder.
function substreams.members_of(query)
  local members, prefix = {}, query .. '/'
  for _, name in ipairs({key.last_events(query), key.idle(query)}) do
    for _, member in ipairs(redis.call('ZRANGE', name, 0, -1)) do
      if member ~= prefix then members[#members + 1] = member end
    end
  end
  for _, member in ipairs(redis.call('ZRANGE', key.done, 0, -1)) do
    if string.sub(member, 1, #prefix) == prefix then members[#members + 1] = member end
  end
  return members
end

-- Return the queries with per-query keys, '' (reports without batches) first. The list may be too long for unpack.
function substreams.query_names()
  local names = redis.call('SMEMBERS', key.query_names)
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

-- Add a placeholder for each expected query without substreams, and remove all other placeholders.
function substreams.expect_queries()
  remove_unexpected()
  local has_done = {}
  for _, member in ipairs(redis.call('ZRANGE', key.done, 0, -1)) do has_done[policy.query_of(member)] = true end
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
-- of a later batch commits the open batch, because Spark begins batch N only after batch N - 1 has returned.
--
-- args   token, run, batch_id, known (whether the client has a pinned watermark), pinned_watermark, keep, waited_ms,
--        input_age_ms (absent: unknown)
-- reply  pinned_watermark, replayed, joined, latest_event_time, previous_batch_id, previous_open, revision
-- errors query_fenced, query_retired, checkpoint_conflict, batch_forgotten, pinned_watermark_conflict, job_complete
local job, number = state.job, values.number
local run, batch_id, known = args.run, args.batch_id, args.known

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
local pinned = args.pinned_watermark
if stored then
  if known and pinned ~= number(stored) then
    values.refuse('pinned_watermark_conflict', {pinned_watermark = number(stored)})
  end
  known, pinned = true, number(stored)
end
if job.is_complete and not is_replay then values.refuse('job_complete') end

tokens.accept(args.token)
local joined = not is_replay and joins(query)
batches.enter(query, run)
clock.add_outage(query, args.waited_ms)
if is_replay then
  if batch_id == query.latest then
    batches.take_over(query, run.run_id)
    -- The answer to the first begin may have been lost, and with it the evidence of a lost commit.
    if query.open then previous, was_open = query.previous, query.previous_open or false end
  end
  return finish(pinned, true, false, previous, was_open)
end
batches.move_to(query, run.query_id)
query.previous, query.previous_open = previous, was_open
local input_known_until = args.input_age_ms and job.now - args.input_age_ms
local commits, has_left = query.open, false
if commits then
  -- The store has lost the commit, and perhaps also reports of this batch. The batch is therefore no evidence that
  -- substreams are silent.
  query.input_known_until = nil
  has_left = batches.commit_staged(query, staging.read(query.name))
end
-- The known pinned watermark must hold W while the previous batch is committed.
if known then batches.open_batch(query, batch_id, pinned, input_known_until, args.keep) end
if commits then evaluate.evaluate(has_left) end
if not known then
  pinned = job.coalesced_watermark
  batches.open_batch(query, batch_id, pinned, input_known_until, args.keep)
end
return finish(pinned, false, joined, previous, was_open)
end
commands.commit = function()
-- Apply the staged reports of a batch and account for its rows, exactly once.
--
-- args   token, run, batch_id, waited_ms, reported (absent: unknown); members, counts (a column for each row class),
--        disposition (dropped or diverted), hours_of_job and hours (see parts/ledger)
-- reply  applied: false if the batch was already committed
-- errors query_fenced, query_retired, batch_not_begun, reports_missing

-- Add a column of counts to the totals of the job and of its substreams.
local function account(class, column)
  local total, members, counts = 0, {}, {}
  for i, count in ipairs(column) do
    if count ~= 0 then
      members[#members + 1], counts[#counts + 1] = args.members[i], count
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

reply.load()
local query = batches.begun_query(args.run, args.batch_id)
local is_open = query.open and args.batch_id == query.latest
local staged = is_open and staging.read(query.name)
if is_open and args.reported and args.reported > staged.count then
  values.refuse('reports_missing', {query = query.name, batch_id = args.batch_id, missing = args.reported - staged.count})
end
tokens.accept(args.token)
batches.contact(query)
clock.add_outage(query, args.waited_ms)
if is_open then
  evaluate.evaluate(batches.commit_staged(query, staged))
  for class, column in pairs(args.counts) do account(class, column) end
  if args.disposition == 'diverted' and args.counts.late then account('diverted', args.counts.late) end
  if #args.hours_of_job > 0 then ledger.add(args.hours_of_job, args.hours, args.members, args.disposition) end
end
return reply.finish({applied = is_open})
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
-- args   version (absent: create a job), state_epoch, config (JSON text, as the client sent it),
--        compiled_config (JSON text), max_jobs, quota (prefix, jobs), actor, reason; on a Redis Cluster also
--        jobs_elsewhere and in_quota_elsewhere, the numbers of jobs in other buckets
-- reply  created, revision
-- errors job_exists, job_not_found, job_deleted, revision_mismatch, too_many_jobs
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
  local incarnation, now = (job.incarnation or 0) + 1, clock.now()
  -- Start after the records of the previous incarnation, so that no client continues from an old record.
  local deleted = number(redis.call('HGET', key.job, 'deleted'))
  if deleted then now = math.max(now, deleted + 1) end
  check_quota()
  redis.call('DEL', key.job)
  redis.call('SADD', key.jobs, key.name)
  state.start(incarnation, args.state_epoch, now)
  reply.remember()
  redis.call('HSET', key.job, 'state', 'live', 'created', job.now)
  write_config()
  journal.write('created', 'actor', args.actor, 'reason', args.reason)
  substreams.expect_queries()
  return finish(true)
end

if not args.version then
  if state.read() == 'live' then values.refuse('job_exists') end
  return create()
end
reply.load()
state.check_version(args.version)

local before = {}
for name, value in pairs(config) do before[name] = value end
write_config()
local after = {policies = config.policies, has_clock_driven = config.has_clock_driven}
journal.write('config', 'actor', args.actor, 'reason', args.reason)
substreams.expect_queries()
if config.max_retention_ms ~= before.max_retention_ms then job.retention = nil end
if config.idle_timeout_ms and not before.idle_timeout_ms then
  -- The silence of reports without batches was not measured before, so it starts now.
  for _, name in ipairs({key.last_events(''), key.idle('')}) do
    bulk.zadd_all(name, job.observed_now, redis.call('ZRANGE', name, 0, -1))
  end
end

local function idle_clock_of(query)
  if query == '' then return job.observed_now end
  return queries.get(query).idle_clock
end

-- Make idle substreams of a query active that are not silent under the new configuration.
local function undo_idle(query)
  local idle_clock = idle_clock_of(query)
  local silent = config.idle_timeout_ms and idle_clock and idle_clock - config.idle_timeout_ms or -math.huge
  local idle = redis.call('ZRANGE', key.idle(query), '(' .. text(silent), '+inf', 'BYSCORE')
  local _, active = bulk.split_by_set(key.forced_idle, idle)
  idleness.activate(query, active, false)
end

-- The stored states belong to the previous policies.
state.forget_config()
config.policies, config.has_clock_driven = before.policies, before.has_clock_driven
for _, query in ipairs(substreams.query_names()) do undo_idle(query) end
config.policies, config.has_clock_driven = after.policies, after.has_clock_driven

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
  if is_active then
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
  else
    clock_driven.write(member, s)
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
  end
  max_event_times.store({member}, event_times)
end

for _, query in ipairs(substreams.query_names()) do
  for _, member in ipairs(redis.call('ZRANGE', key.last_events(query), 0, -1)) do change_policy(member, true) end
  for _, member in ipairs(redis.call('ZRANGE', key.idle(query), 0, -1)) do change_policy(member, false) end
end
if not job.is_complete then idleness.time_out_queries() end
for _, query in ipairs(substreams.query_names()) do idleness.expire(query, idle_clock_of(query)) end
job.evaluate_each = 1
evaluate.evaluate()
return finish(false)
end
commands.declare = function()
-- Make substreams known before their first event, so that they hold the watermark from the start. The watermark does
-- not move.
--
-- args   max_substreams, query, members, max_event_times (columns; false: unknown), actor, reason
-- reply  applied
-- errors job_complete, too_many_substreams
local job, number = state.job, values.number
local members = args.members
reply.load()
local known, done = membership.known(members), bulk.zmscore(key.done, members)
local before = max_event_times.of(members)
local new, unseen, event_times = {}, {}, {}
for i, member in ipairs(members) do
  if not known[i] then new[#new + 1] = member end
  if number(args.max_event_times[i]) and not before[i] and not done[i] and not job.is_complete then
    unseen[#unseen + 1], event_times[#event_times + 1] = member, args.max_event_times[i]
  end
end
if #new > 0 and job.is_complete then values.refuse('job_complete') end
observation.check_room(new)
local observed = clock.observed_time(args.query)
if #new > 0 then observation.add_substreams(args.query, new, observed) end
unseen, event_times = observation.set_aside_future(args.query, unseen, event_times, {})
observation.observe(args.query, unseen, event_times, {}, observed)
local is_affected, affected = {}, {}
for _, list in ipairs({new, unseen}) do
  for _, member in ipairs(list) do is_affected[member] = true end
end
for _, member in ipairs(members) do
  if is_affected[member] then affected[#affected + 1] = member end
end
if #unseen > 0 then
  job.evaluation_due = 1
  -- Computed watermarks assume that only evaluations sample a history.
  if state.config.has_clock_driven then job.evaluate_each = 1 end
end
if #affected > 0 then journal.write_action('declare', args.query, affected) end
return reply.finish({applied = #affected > 0})
end
commands.delete = function()
-- Delete a job and its data. A tombstone stays, so that reports are refused and a create starts a new incarnation.
--
-- args   version
-- errors job_not_found (never created), revision_mismatch; a repeated delete succeeds
local job = state.job
if state.read() == 'deleted' then return {map = {}} end
clock.load()
state.check_version(args.version)
removal.remove_all()
redis.call('DEL', key.journal)
for _, interval in ipairs(constants.SAMPLE_INTERVALS_MS) do redis.call('DEL', key.timeline(interval)) end
state.delete()
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

local sets, frozen = emission.active_sets(), {{key.frozen, 0}}
local low, high = range_of(sets)
if not low or membership.count() <= args.more_than then return emission.watermark_state() end
local _, highest_frozen = range_of(frozen)
high = math.max(high, highest_frozen or high)
local width = width_for(high - low)
local start, active, others = low - values.modulo(low, width), {}, {}
for from = start, high, width do
  active[#active + 1], others[#others + 1] = count(sets, from, from + width), count(frozen, from, from + width)
end
local earlier = redis.call('ZCOUNT', key.frozen, '(-inf', '(' .. text(start))
return emission.watermark_state({width = width, start = start, active = active, others = others, earlier = earlier})
end
commands.done = function()
-- Mark substreams as done, so that they never hold the watermark again. If any substream is unknown, no substream
-- changes.
--
-- args   query, members, actor, reason
-- reply  applied
-- errors substream_not_found
local query, members = args.query, args.members
reply.load()
substreams.check_known(query, members)
local _, new = bulk.split_by_set(key.done, members)
if #new > 0 then
  local active, idle = bulk.split_by_set(key.last_events(query), new)
  bulk.zadd_each(key.done, bulk.zmscore(key.last_events(query), active), active)
  bulk.zadd_each(key.done, bulk.zmscore(key.idle(query), idle), idle)
  idleness.freeze(active)
  bulk.zadd_all(key.since, state.job.now, new)
  for _, name in ipairs({key.last_events(query), key.idle(query), key.forced_idle}) do bulk.zrem(name, new) end
  bulk.hdel(key.clock_driven, new)
  journal.write_action('done', query, new)
end
evaluate.evaluate(true)
return reply.finish({applied = #new > 0})
end
commands.evict = function()
-- Evict substreams; ignore unknown substreams.
--
-- args   query, members, actor, reason
-- reply  applied
reply.load()
local known = membership.split(args.members)
substreams.forget(args.query, known)
if #known > 0 then journal.write_action('evict', args.query, known) end
evaluate.evaluate(true)
return reply.finish({applied = #known > 0})
end
commands.explain = function()
-- Return the data of an explanation: the job after a sweep, and its holders, lowest first. Active substreams and open
-- batches are limited to those that may hold the watermark.
--
-- args   limit
-- reply  config (JSON), unattended_ms, max_watermark, coalesced_watermark_since_ms, watermark_since_ms,
--        retention (parts/history), holds, open_batches, substreams, queries (of these batches and substreams)
local job, number = state.job, values.number
local limit = args.limit
reply.load()
evaluate.sweep()

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
  records = redis.call('XREVRANGE', key.journal, args.last, args.first, 'COUNT', args.limit),
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
local query, members = args.query, args.members
reply.load()
substreams.check_known(query, members)
local done = bulk.split_by_set(key.done, members)
if #done > 0 then values.refuse('substream_done', {query = query, substreams = done}) end
local active = bulk.split_by_set(key.last_events(query), members)
local has_left = #active > 0 and idleness.set_idle(query, active, bulk.zmscore(key.last_events(query), active))
bulk.zadd_all(key.forced_idle, 1, members)
if #active > 0 then journal.write_action('idle', query, active) end
evaluate.evaluate(has_left)
return reply.finish({applied = #active > 0})
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
-- Apply event times and watermarks immediately, without a batch.
--
-- args   max_substreams; tokens (of the clients that sent the reports); members, max_event_times, watermarks,
--        min_event_times (columns); delayed, delays (columns: members, lists of alternating buckets and rows; may be
--        absent)
-- reply  without_effect (members)
-- errors job_complete, event_time_missing, too_many_substreams
local job, config, number = state.job, state.config, values.number

-- Return the lowest event time, which limits watermarks that follow the clock; infinite if there are no such watermarks.
local function lowest_event_time(event_times, min_event_times)
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

reply.load()
state.look_for_rare_sets()
if job.is_complete then values.refuse('job_complete') end
observation.check_event_times(args.members, args.max_event_times, args.watermarks)
observation.check_room(args.members)
for _, token in ipairs(args.tokens) do tokens.accept(token) end
job.last_contact = job.now
local members, event_times, watermarks, min_event_times =
  observation.set_aside_future('', args.members, args.max_event_times, args.watermarks, args.min_event_times)
if args.delayed then delays.measure('', args.delayed, args.delays, merge.merged_watermark()) end
local names = observation.observe('', members, event_times, watermarks, job.observed_now, args.members)
evaluate.after_report(lowest_event_time(event_times, min_event_times))
return reply.finish({applied = #names > 0 or nil, without_effect = missing_from(names, args.members)})
end
commands.reset = function()
-- Start a new incarnation under the same configuration, without a watermark. The journal and the timeline stay.
--
-- args   state_epoch, actor, reason
local job = state.job
reply.load()
removal.remove_all()
state.start(job.incarnation + 1, args.state_epoch, job.now)
reply.remember()
journal.write_action('reset')
substreams.expect_queries()
return reply.finish()
end
commands.restore = function()
-- Raise the watermarks of known substreams, and raise C to the lowest watermark of all substreams. Holds limit C; the
-- throttle does not.
--
-- args   query, members, watermarks (columns), actor, reason
-- reply  applied
-- errors job_complete, substream_not_found
local job, number, score = state.job, values.number, values.score
local query, members = args.query, args.members
reply.load()
if job.is_complete then values.refuse('job_complete') end
substreams.check_known(query, members)

local driven = {}  -- the active substreams that follow the clock
advancing.each_materialized(function(member, s, rule) driven[member] = {s = s, rule = rule} end)

-- Restore a substream that is idle or does not follow the clock.
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

local active, frozen, new = bulk.zmscore(key.active, members), bulk.zmscore(key.frozen, members), {}
for i, member in ipairs(members) do
  local watermark, own = args.watermarks[i], number(active[i] or frozen[i])
  if driven[member] then own = driven[member].s.own end
  if values.above(watermark, own) then
    new[#new + 1] = member
    if driven[member] then driven[member].s.own = watermark else restore_flat(member, watermark, active[i]) end
  end
end
if #new == 0 then return reply.finish({applied = false}) end

local lowest = math.huge
for member, one in pairs(driven) do
  advancing.place(member, one.s, one.rule)
  lowest = math.min(lowest, one.s.own or -math.huge)
end
job.evaluate_each, job.evaluation_due = 1, 1
for _, name in ipairs({key.active, key.frozen}) do
  local first, watermark = values.lowest_of(name)
  if first then lowest = math.min(lowest, watermark or -math.huge) end
end
journal.write_action('restore', query, new)
lowest = holds.cap(lowest)
if lowest > -math.huge then emission.advance(lowest) end
emission.emit()
return reply.finish({applied = true})
end
commands.retire = function()
-- Retire a query: abandon its open batch, and move its substreams to a successor or evict them. A query that is its own
-- successor keeps its substreams and may begin on another checkpoint.
--
-- args   query, successor (absent: evict), actor, reason
-- reply  applied
-- errors query_not_found
local job = state.job
local name, successor = args.query, args.successor
reply.load()
local query, own = queries.get(name), substreams.members_of(name)
local is_missing = redis.call('SISMEMBER', key.missing_queries, name) == 1
if not query.run_id and #own == 0 and not is_missing then values.refuse('query_not_found', {query = name}) end
if query.retired and #own == 0 and not is_missing then return reply.finish({applied = false}) end

if successor == name then
  local applied = query.open
  if applied then
    batches.give_up(query)
    journal.write_action('hand_over', name, nil, 'successor', successor)
  end
  evaluate.evaluate(true)
  return reply.finish({applied = applied})
end

local function move(from_key, to_key, from, to, score)
  local present = redis.call('ZSCORE', from_key, from)
  if not present then return end
  redis.call('ZREM', from_key, from)
  redis.call('ZADD', to_key, score or present, to)
end

local function move_field(name_, from, to)
  local value = redis.call('HGET', name_, from)
  if value then redis.call('HSET', name_, to, value) end
  redis.call('HDEL', name_, from)
end

-- Move a substream with its state to the successor; its silence starts now.
local function hand_over_member(from, to, now)
  redis.call('SADD', key.query_names, successor)
  observation.remove_placeholder(successor)
  local sets = {key.max_event_times, key.active, key.frozen, key.forced_idle, key.since, key.constant, key.advancing,
    key.next_change}
  for _, limit in ipairs(constants.POLICY_LIMITS) do sets[#sets + 1] = key.lagged(limit) end
  for _, set in ipairs(sets) do move(set, set, from, to) end
  move(key.done, key.done, from, to, now)
  move(key.last_events(name), key.last_events(successor), from, to, now)
  move(key.idle(name), key.idle(successor), from, to, now)
  for _, hash in ipairs({key.clock_driven, key.delays, key.learned_lags}) do move_field(hash, from, to) end
  for _, class in ipairs(substreams.ROW_CLASSES) do
    local rows = redis.call('HGET', key.rows, class .. ' ' .. from)
    if rows then bulk.add(key.rows, class .. ' ' .. to, rows) end
    redis.call('HDEL', key.rows, class .. ' ' .. from)
  end
end

if not query.run_id then  -- the query has made no call: store it as retired
  redis.call('ZADD', key.queries, 'NX', job.now, name)
  redis.call('SADD', key.query_names, name)
  query.query_id, query.run_id, query.last_contact = '', '', job.now
end
batches.give_up(query)
redis.call('ZREM', key.last_seen, name)
if successor then
  local names, now = {}, (clock.observed_time(successor))
  for i, member in ipairs(own) do names[i] = successor .. '/' .. policy.name_of(member) end
  local taken = membership.known(names)
  for i, member in ipairs(own) do
    if not taken[i] then hand_over_member(member, names[i], now) end
  end
end
observation.remove_placeholder(name)
substreams.forget(name, own)
journal.write_action(successor and 'hand_over' or 'retire', name, own, 'successor', successor)
evaluate.evaluate(true)
return reply.finish({applied = true})
end
commands.stage = function()
-- Store the report of one partition until its batch commits.
--
-- args   max_substreams, token, run, batch_id, partition; members, max_event_times, watermarks, rows, future_rows (columns;
--        rows and future_rows may be empty); delayed, delays (columns: members, lists of alternating buckets and rows)
-- reply  applied: false if the batch is already committed
-- errors query_fenced, query_retired, batch_not_begun, event_time_missing, too_many_substreams
reply.load()
local query = batches.begun_query(args.run, args.batch_id)
observation.check_event_times(args.members, args.max_event_times, args.watermarks)
local is_open = query.open and args.batch_id == query.latest
if is_open then observation.check_room(args.members) end
tokens.accept(args.token)
batches.contact(query)
if is_open then
  local members, event_times, watermarks =
    observation.set_aside_future(query.name, args.members, args.max_event_times, args.watermarks)
  staging.add(query, {partition = args.partition, members = members, event_times = event_times,
    watermarks = watermarks, counted = args.members, rows = args.rows, future_rows = args.future_rows,
    delayed = args.delayed, delays = args.delays})
end
return reply.finish({applied = is_open})
end
commands.status = function()
-- Read the status of a job.
--
-- reply  config (JSON), revision, created_ms, and the fields of tidegate.domain.results.JobSummary
local job, number = state.job, values.number
clock.load()
local missing = redis.call('SMEMBERS', key.missing_queries)
local frozen, done = redis.call('ZCARD', key.frozen), redis.call('ZCARD', key.done)
local known = membership.count() - #missing
local active, idle = membership.count_active(), frozen - done
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
  if rule.limit and redis.call('ZSCORE', key.lagged(rule.limit), member) then
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
if membership.count() <= (args.limit or 0) then
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
-- clock.
reply.load()
evaluate.sweep()
return reply.finish()
end
commands.timeline = function()
-- Read the samples of a job, oldest first.
--
-- args   interval_ms, limit (number of samples)
-- reply  samples (texts, see parts/timeline)
clock.load()
return emission.watermark_state({samples = redis.call('LRANGE', key.timeline(args.interval_ms), -args.limit, -1)})
end
commands.watch = function()
-- Sweep a job, and return its records after a record that the client has.
--
-- args   after (id of that record; absent: none), limit
-- reply  newest (id of the newest record), known (the record that the client has; empty if the journal no longer
--        keeps it, and later records may be lost), records (the later records); records are entries of the stream
reply.load()
evaluate.sweep()
local found = reply.finish()
local known = args.after and redis.call('XRANGE', key.journal, args.after, args.after) or {}
found.map.newest = redis.call('XREVRANGE', key.journal, '+', '-', 'COUNT', 1)[1][1]
found.map.known = known
found.map.records = #known > 0 and redis.call('XRANGE', key.journal, '(' .. args.after, '+', 'COUNT', args.limit) or {}
return found
end
return function(command)
state.forget()
return commands[command]()
end
end
local run
local function call(command, keys, argument)
run = run or create()
key.enter(keys)
args = cmsgpack.unpack(argument)
local ok, result = pcall(run, command)
if ok then return result end
if type(result) == 'table' and result.refused then return {map = result.refused} end
if type(result) == 'string' and string.find(result, '^%u+ ') then result = {err = result} end  -- keeps its code
error(result, 0)
end
redis.register_function{function_name = 'tidegate_59fcc3510505d125_begin', flags = {},
callback = function(keys, arguments) return call('begin', keys, arguments[1]) end}
redis.register_function{function_name = 'tidegate_59fcc3510505d125_commit', flags = {},
callback = function(keys, arguments) return call('commit', keys, arguments[1]) end}
redis.register_function{function_name = 'tidegate_59fcc3510505d125_complete', flags = {},
callback = function(keys, arguments) return call('complete', keys, arguments[1]) end}
redis.register_function{function_name = 'tidegate_59fcc3510505d125_completeness', flags = {'no-writes'},
callback = function(keys, arguments) return call('completeness', keys, arguments[1]) end}
redis.register_function{function_name = 'tidegate_59fcc3510505d125_configure', flags = {},
callback = function(keys, arguments) return call('configure', keys, arguments[1]) end}
redis.register_function{function_name = 'tidegate_59fcc3510505d125_declare', flags = {},
callback = function(keys, arguments) return call('declare', keys, arguments[1]) end}
redis.register_function{function_name = 'tidegate_59fcc3510505d125_delete', flags = {'allow-oom'},
callback = function(keys, arguments) return call('delete', keys, arguments[1]) end}
redis.register_function{function_name = 'tidegate_59fcc3510505d125_distribution', flags = {'no-writes'},
callback = function(keys, arguments) return call('distribution', keys, arguments[1]) end}
redis.register_function{function_name = 'tidegate_59fcc3510505d125_done', flags = {},
callback = function(keys, arguments) return call('done', keys, arguments[1]) end}
redis.register_function{function_name = 'tidegate_59fcc3510505d125_evict', flags = {},
callback = function(keys, arguments) return call('evict', keys, arguments[1]) end}
redis.register_function{function_name = 'tidegate_59fcc3510505d125_explain', flags = {},
callback = function(keys, arguments) return call('explain', keys, arguments[1]) end}
redis.register_function{function_name = 'tidegate_59fcc3510505d125_heartbeat', flags = {},
callback = function(keys, arguments) return call('heartbeat', keys, arguments[1]) end}
redis.register_function{function_name = 'tidegate_59fcc3510505d125_history', flags = {'no-writes'},
callback = function(keys, arguments) return call('history', keys, arguments[1]) end}
redis.register_function{function_name = 'tidegate_59fcc3510505d125_hold', flags = {},
callback = function(keys, arguments) return call('hold', keys, arguments[1]) end}
redis.register_function{function_name = 'tidegate_59fcc3510505d125_idle', flags = {},
callback = function(keys, arguments) return call('idle', keys, arguments[1]) end}
redis.register_function{function_name = 'tidegate_59fcc3510505d125_late', flags = {'no-writes'},
callback = function(keys, arguments) return call('late', keys, arguments[1]) end}
redis.register_function{function_name = 'tidegate_59fcc3510505d125_queries', flags = {'no-writes'},
callback = function(keys, arguments) return call('queries', keys, arguments[1]) end}
redis.register_function{function_name = 'tidegate_59fcc3510505d125_release', flags = {},
callback = function(keys, arguments) return call('release', keys, arguments[1]) end}
redis.register_function{function_name = 'tidegate_59fcc3510505d125_reopen', flags = {},
callback = function(keys, arguments) return call('reopen', keys, arguments[1]) end}
redis.register_function{function_name = 'tidegate_59fcc3510505d125_report', flags = {},
callback = function(keys, arguments) return call('report', keys, arguments[1]) end}
redis.register_function{function_name = 'tidegate_59fcc3510505d125_reset', flags = {},
callback = function(keys, arguments) return call('reset', keys, arguments[1]) end}
redis.register_function{function_name = 'tidegate_59fcc3510505d125_restore', flags = {},
callback = function(keys, arguments) return call('restore', keys, arguments[1]) end}
redis.register_function{function_name = 'tidegate_59fcc3510505d125_retire', flags = {},
callback = function(keys, arguments) return call('retire', keys, arguments[1]) end}
redis.register_function{function_name = 'tidegate_59fcc3510505d125_stage', flags = {},
callback = function(keys, arguments) return call('stage', keys, arguments[1]) end}
redis.register_function{function_name = 'tidegate_59fcc3510505d125_status', flags = {'no-writes'},
callback = function(keys, arguments) return call('status', keys, arguments[1]) end}
redis.register_function{function_name = 'tidegate_59fcc3510505d125_substreams', flags = {'no-writes'},
callback = function(keys, arguments) return call('substreams', keys, arguments[1]) end}
redis.register_function{function_name = 'tidegate_59fcc3510505d125_sweep', flags = {},
callback = function(keys, arguments) return call('sweep', keys, arguments[1]) end}
redis.register_function{function_name = 'tidegate_59fcc3510505d125_timeline', flags = {'no-writes'},
callback = function(keys, arguments) return call('timeline', keys, arguments[1]) end}
redis.register_function{function_name = 'tidegate_59fcc3510505d125_watch', flags = {},
callback = function(keys, arguments) return call('watch', keys, arguments[1]) end}
redis.register_function{function_name = 'tidegate_59fcc3510505d125_together', flags = {},
callback = function(keys, arguments)
local replies = {}
for i = 1, #arguments, 2 do replies[#replies + 1] = call(arguments[i], keys, arguments[i + 1]) end
return replies
end}
redis.register_function{function_name = 'tidegate_59fcc3510505d125_reads_together', flags = {'no-writes'},
callback = function(keys, arguments)
local replies = {}
for i = 1, #arguments, 2 do replies[#replies + 1] = call(arguments[i], keys, arguments[i + 1]) end
return replies
end}
