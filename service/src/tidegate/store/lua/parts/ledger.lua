-- @include parts/observation
-- Rows by hour of event time, with updated and late rows. See tidegate.domain.ledger.
local ledger = {}

-- Forget the first hours if there are too many hours or entries. Always keep the last hour.
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

-- Add rows of a member ('': of the job) to the keys of an hour.
local function add_rows(keys, member, disposition, row)
  bulk.add(keys.rows, member, row.rows)
  if row.updated ~= '0' then bulk.add(keys.late, 'updated ' .. member, row.updated) end
  if row.late ~= '0' then bulk.add(keys.late, disposition .. ' ' .. member, row.late) end
end

-- Add the rows of a batch by hour. of_job: rows of the job, and unattributed rows, which have no substream.
-- of_substreams: rows of members; place is the index of the member. known: max event times, false for unknown members.
function ledger.add(of_job, of_substreams, members, known, disposition)
  local latest, hours = observation.latest_event_time(), {}
  for _, row in ipairs(of_job) do
    if not (latest and row.hour * constants.HOUR > latest) then
      local hour = values.text(row.hour)
      local rows = key.hour_rows(hour)
      hours[row.hour] = {rows = rows, late = key.hour_late(hour), size = redis.call('HLEN', rows)}
      redis.call('ZADD', key.hours, hour, hour)
      add_rows(hours[row.hour], '', disposition, row)
      if row.unattributed ~= '0' then bulk.add(rows, '?', row.unattributed) end
    end
  end
  for _, row in ipairs(of_substreams) do
    local keys = hours[row.hour]
    if keys and known[row.place] then add_rows(keys, members[row.place], disposition, row) end
  end
  for _, keys in pairs(hours) do  -- only new entries can exceed the limits, and trim() is slow
    if redis.call('HLEN', keys.rows) > keys.size then return trim() end
  end
end

return ledger
