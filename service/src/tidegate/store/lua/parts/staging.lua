-- @include parts/steps
-- @include parts/membership
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
