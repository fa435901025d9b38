-- Read late rows by hour of event time, oldest hour first. A large result is split into several replies.
--
-- args   member ('': the job), after (last hour of the previous reply; absent: from the first hour)
-- reply  is_known (the member is a substream), counts (rows by class), hours (hour; late: hash of
--        '<disposition> <member>'; names, rows: rows of the member, of no substream, and of the members with late
--        rows), next (value of after for the next reply; absent: no more hours)
-- @include parts/emission
-- @include parts/membership
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
