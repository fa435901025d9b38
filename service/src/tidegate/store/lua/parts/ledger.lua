-- @include parts/observe
-- What became of late rows, by hour of event time: tidegate.domain.ledger.

-- Forgets the first hours where there are too many, or too much of them; never the last.
local function shorten()
  local kept, sizes, entries = redis.call('ZRANGE', K.hours, 0, -1), {}, 0
  for i, hour in ipairs(kept) do
    sizes[i] = redis.call('HLEN', K.hour_rows(hour)) - 1
    entries = entries + sizes[i]
  end
  local first = 1
  while first < #kept and (#kept - first + 1 > K.hours_kept or entries > K.entries_kept) do
    redis.call('UNLINK', K.hour_rows(kept[first]), K.hour_late(kept[first]))
    redis.call('ZREM', K.hours, kept[first])
    entries = entries - sizes[first]
    first = first + 1
  end
end

-- Takes in rows of members (known of each: whether it is) by hour: columns of places in `members`, hours, rows, how many
-- of these changed a result, and how many were late and went where the class `went` says.
local function enter_hours(members, known, went, places, hours, rows, updated, late)
  local totals, new = {}, false
  for i, place in ipairs(places) do
    if rows[i] ~= '0' then
      local hour = hours[i]
      local total = totals[hour]
      if not total then
        total = {seen = K.hour_rows(hour), went = K.hour_late(hour), rows = 0, updated = 0, late = 0}
        totals[hour] = total
        new = redis.call('ZADD', K.hours, hour, hour) == 1 or new
      end
      local member = known[tonumber(place)] and members[tonumber(place)]
      if member then add(total.seen, member, rows[i]) end
      total.rows = total.rows + rows[i]
      if updated[i] ~= '0' then
        if member then add(total.went, 'updated ' .. member, updated[i]) end
        total.updated = total.updated + updated[i]
      end
      if late[i] ~= '0' then
        if member then add(total.went, went .. ' ' .. member, late[i]) end
        total.late = total.late + late[i]
      end
      if total.rows > HIGHEST / 2 then  -- before a sum of doubles loses its last digit
        add(total.seen, '', fmt(total.rows))
        add(total.went, 'updated ', fmt(total.updated))
        add(total.went, went .. ' ', fmt(total.late))
        total.rows, total.updated, total.late = 0, 0, 0
      end
    end
  end
  for _, total in pairs(totals) do
    if total.rows > 0 then add(total.seen, '', fmt(total.rows)) end
    if total.updated > 0 then add(total.went, 'updated ', fmt(total.updated)) end
    if total.late > 0 then add(total.went, went .. ' ', fmt(total.late)) end
  end
  if new then shorten() end
end
