-- @include parts/observation
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
