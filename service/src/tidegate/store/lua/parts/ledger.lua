-- @include parts/observe
-- What became of late rows, by hour of event time: tidegate.domain.ledger.

-- Takes in rows of members (known of each: whether it is) by hour: columns of places in `members`, hours, rows, how many
-- of these changed a result, and how many were late and went where the class `went` says.
local function enter_hours(members, known, went, places, hours, rows, updated, late)
  local new, entered, totals = false, {}, {}
  local function of_job(key, field, number)
    local sums = totals[key] or {}
    totals[key] = sums
    sums[field] = (sums[field] or 0) + tonumber(number)
    if sums[field] > HIGHEST / 2 then  -- before a sum of doubles loses its last digit
      add(key, field, fmt(sums[field]))
      sums[field] = 0
    end
  end
  for i, place in ipairs(places) do
    if rows[i] ~= '0' then
      local hour, at = hours[i], tonumber(place)
      if not entered[hour] then
        new = redis.call('ZADD', K.hours, hour, hour) == 1 or new
        entered[hour] = true
      end
      local seen, late_ones = K.hour_rows(hour), K.hour_late(hour)
      of_job(seen, '', rows[i])
      if updated[i] ~= '0' then of_job(late_ones, 'updated ', updated[i]) end
      if late[i] ~= '0' then of_job(late_ones, went .. ' ', late[i]) end
      if known[at] then
        local member = members[at]
        add(seen, member, rows[i])
        if updated[i] ~= '0' then add(late_ones, 'updated ' .. member, updated[i]) end
        if late[i] ~= '0' then add(late_ones, went .. ' ' .. member, late[i]) end
      end
    end
  end
  for key, sums in pairs(totals) do
    for field, sum in pairs(sums) do
      if sum > 0 then add(key, field, fmt(sum)) end
    end
  end
  if not new then return end
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
