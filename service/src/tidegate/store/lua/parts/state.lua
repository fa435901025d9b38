-- @include parts/values
-- The data of a job: its own hash, read once and written once, and its configuration (tidegate.store.compiled).
--
-- job.now is processing time. job.unattended is the total time in which no coordinator evaluated the job.
-- job.observed_now is the observed time of the job, job.now - job.unattended. Limits on silence are in observed time.
--
-- changes has what the command has changed so far: before (C and W before the command), passed (members that a limit let
-- C pass), is_recorded (the journal has a new record).
local text = values.text
local state = {job = {}, config = {}, changes = {}}
local job, config, stored = state.job, state.config, {}
local decoded, decoded_count, MAX_DECODED = {}, 0, 1000

local NUMBERS = {'incarnation', 'clock', 'unattended', 'coalesced_watermark', 'coalesced_watermark_since', 'watermark',
  'watermark_since', 'max_watermark', 'max_event_time', 'is_complete', 'completed', 'all_idle', 'merged_highest',
  'evaluated', 'evaluations', 'unattended_at_evaluation', 'evaluation_due', 'evaluate_each', 'lowest_clock_driven',
  'scheduled', 'next_change', 'emissions', 'throttled', 'last_contact', 'wait_weight'}
local TEXTS = {'state_epoch', 'retention', 'capped', 'gaps', 'wait_sum'}
local FIELDS = {'state', 'revision', 'compiled_config', unpack(NUMBERS)}
for _, field in ipairs(TEXTS) do FIELDS[#FIELDS + 1] = field end

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

-- Read the configuration from its stored text. The texts of the last jobs stay decoded.
function state.configure(compiled)
  if not decoded[compiled] then
    if decoded_count == MAX_DECODED then decoded, decoded_count = {}, 0 end
    decoded[compiled], decoded_count = decode(compiled), decoded_count + 1
  end
  replace(config, decoded[compiled])
end

-- Read the job; return 'live', 'deleted', or nil if it was never created.
function state.read()
  local found = redis.call('HMGET', key.job, unpack(FIELDS))
  for i, field in ipairs(FIELDS) do stored[field] = found[i] or '' end
  for _, field in ipairs(NUMBERS) do job[field] = tonumber(stored[field]) end
  for _, field in ipairs(TEXTS) do job[field] = stored[field] end
  job.revision = tonumber(stored.revision)
  if stored.state == 'live' then state.configure(stored.compiled_config) end
  return found[1] or nil
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
    local value = text(job[field])
    if value ~= stored[field] then changed[#changed + 1], changed[#changed + 2] = field, value end
  end
  for _, field in ipairs(TEXTS) do
    if job[field] ~= stored[field] then changed[#changed + 1], changed[#changed + 2] = field, job[field] or '' end
  end
  if #changed > 0 then redis.call('HSET', key.job, unpack(changed)) end
end

-- Forget everything about the job of the previous call.
function state.forget()
  for _, kept in ipairs({job, config, stored}) do replace(kept, {}) end
  replace(state.changes, {passed = {}})
end

-- Forget the stored values, because the hash was deleted; save() then writes every field.
function state.forget_stored()
  replace(stored, {})
end

return state
