-- @include parts/values
-- The data of a job: its own hash, read once and written once, and its configuration (tidegate.store.compiled).
--
-- job.now is processing time. job.unattended is the total time in which no coordinator evaluated the job.
-- job.observed_now is the observed time of the job, job.now - job.unattended. Limits on silence are in observed time.
--
-- changes describes the current command: before (C and W before it), passed (members that a limit let C pass), is_recorded
-- (the journal has a new record), is_plain (see state.look_for_rare_sets), raised (see target_completeness.raise), known
-- (see observation.known).
local text = values.text
local state = {job = {}, config = {}, changes = {}}
local job, config, stored = state.job, state.config, {}
local decoded, decoded_bytes, MAX_DECODED_BYTES = {}, 0, 2^21  -- bounded, because maxmemory does not count these tables
local in_force  -- the entry of decoded from which config was copied

local NUMBERS = {'incarnation', 'clock', 'unattended', 'coalesced_watermark', 'coalesced_watermark_since', 'watermark',
  'watermark_since', 'max_watermark', 'max_event_time', 'is_complete', 'completed', 'all_idle', 'merged_highest',
  'evaluated', 'evaluations', 'unattended_at_evaluation', 'evaluation_due', 'evaluate_each', 'lowest_clock_driven',
  'scheduled', 'next_change', 'emissions', 'throttled', 'last_contact', 'wait_weight'}
local TEXTS = {'state_epoch', 'retention', 'capped', 'gaps', 'wait_sum'}
local FIELDS = {'state', 'revision', 'compiled_config', unpack(NUMBERS)}
for _, field in ipairs(TEXTS) do FIELDS[#FIELDS + 1] = field end
local FIRST_NUMBER, FIRST_TEXT = 3, 3 + #NUMBERS  -- the places before the first number and the first text in FIELDS

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
  local found = redis.call('HMGET', key.job, unpack(FIELDS))
  for i, field in ipairs(NUMBERS) do
    local value = tonumber(found[FIRST_NUMBER + i])
    job[field], stored[field] = value, value
  end
  for i, field in ipairs(TEXTS) do
    local value = found[FIRST_TEXT + i] or ''
    job[field], stored[field] = value, value
  end
  job.revision = tonumber(found[2])
  if found[1] == 'live' then state.configure(found[3]) end
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
  replace(job, {incarnation = incarnation, state_epoch = epoch, clock = now, now = now, unattended = unattended,
    observed_now = now - unattended, coalesced_watermark_since = now, watermark_since = now, evaluations = 0,
    lowest_clock_driven = math.huge, retention = '', capped = '', gaps = '', scheduled = job.scheduled,
    emissions = job.emissions, throttled = job.throttled, last_contact = job.last_contact, revision = job.revision,
    outage = job.outage})
end

-- Write the fields that have changed.
function state.save()
  local changed = {}
  for _, field in ipairs(NUMBERS) do
    if job[field] ~= stored[field] then changed[#changed + 1], changed[#changed + 2] = field, text(job[field]) end
  end
  for _, field in ipairs(TEXTS) do
    if job[field] ~= stored[field] then changed[#changed + 1], changed[#changed + 2] = field, job[field] or '' end
  end
  if #changed > 0 then redis.call('HSET', key.job, unpack(changed)) end
end

-- Clear the values that the previous command computed. state.read replaces all other values.
function state.forget()
  job.now, job.observed_now, job.outage, job.held_by, job.capped_evaluations = nil, nil, nil, nil, nil
  state.changes = {passed = {}, raised = {}, known = {}}
end

-- Clear the copy of the stored values after the hash was deleted; save() then writes every field.
function state.forget_stored()
  replace(stored, {})
end

return state
