-- @include job
-- The past of a job, as in tidegate.domain.history: its history, which explains every movement of the watermark (in Redis,
-- key.journal), and its timeline.
local text = values.text
local job = state.job
local history, timeline = {}, {}

-- The history. Details that are nil or '' are omitted.

-- Append a record with details: alternating names and values. Return its id.
function history.write(kind, ...)
  local entry, details = {'kind', kind}, {...}
  for i = 1, select('#', ...), 2 do
    local value = details[i + 1]
    if type(value) == 'number' then value = text(value) end
    if value and value ~= '' then entry[#entry + 1], entry[#entry + 2] = details[i], value end
  end
  local id = redis.call('XADD', key.journal, 'MAXLEN', '=', constants.RECORDS_KEPT, text(math.max(job.now, 0)) .. '-*',
    unpack(entry))
  redis.call('XTRIM', key.journal, 'MINID', '=', math.max(job.now - constants.RECORDS_KEPT_MS, 0))
  state.changes.is_recorded = true
  return id
end

-- Wake the clients that wait for records.
function history.announce() redis.call('PUBLISH', key.wake .. key.name, '') end

function history.add(summary, members)
  for _, member in ipairs(members) do
    summary.count = summary.count + 1
    if summary.count <= constants.NAMES_KEPT then summary.first[summary.count] = member end
  end
end

-- Return a summary of members (absent: none): their number, and the first ones. A command in steps stores a summary only.
function history.summary(members)
  local summary = {count = 0, first = {}}
  history.add(summary, members or {})
  return summary
end

-- Record a change of some substreams of a query, with additional details. changed: a summary.
function history.write_substreams(kind, query, changed, ...)
  if changed.count == 0 then return end
  history.write(kind, 'query', query, 'count', changed.count, 'substreams', cjson.encode(changed.first), ...)
end

-- Record an operator's command. changed: a summary of the affected members; nil if the command has none.
function history.write_action(action, query, changed, ...)
  changed = changed and changed.count > 0 and changed or {}
  history.write('action', 'action', action, 'query', query, 'actor', args.actor, 'reason', args.reason,
    'count', changed.count, 'substreams', changed.first and cjson.encode(changed.first), ...)
end

function history.count_limit(limit) redis.call('HINCRBY', key.job, 'limit ' .. limit, 1) end

-- The timeline: the watermark and its holder at regular processing times. Each interval has its own list of samples.
local INTERVALS, KEPT = constants.SAMPLE_INTERVALS_MS, constants.SAMPLES_KEPT
local SHORTEST = INTERVALS[1]  -- divides the others

local function start_of(interval, time) return time - values.modulo(time, interval) end

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

return history, timeline
