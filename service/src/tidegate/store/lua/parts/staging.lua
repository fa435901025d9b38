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
    for _, member in ipairs(report.members) do
      if not is_listed[member] and (event_times[member] or watermarks[member]) then
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
-- @include parts/state
