-- @include parts/observe
-- What became of late rows, by hour of event time: tidegate.domain.ledger.

-- Forgets the first hours where there are too many, or too much of them; never the last.
local function shorten()
  local kept, sizes, entries = redis.call('ZRANGE', K.hours, 0, -1), {}, 0
  for i, hour in ipairs(kept) do
    local rows = K.hour_rows(hour)
    sizes[i] = redis.call('HLEN', rows) - 1 - redis.call('HEXISTS', rows, '?')
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

-- Adds rows, and what became of them, of a member ('' : of the job) to the keys of an hour.
local function enter_rows(keys, of, went, rows, updated, late)
  add(keys.rows, of, rows)
  if updated ~= '0' then add(keys.late, 'updated ' .. of, updated) end
  if late ~= '0' then add(keys.late, went .. ' ' .. of, late) end
end

-- Takes in rows by hour: columns of hours, rows, how many of these changed a result, and how many were late and went where
-- the class `went` says. `each`: of members (known of each: whether it is), by their `places`. `all`: of the job, in the
-- same hours at least, and which of these rows `each` has not.
local function enter_hours(members, known, went, places, each, all)
  local latest, hours = latest_event_time(), {}
  for i, hour in ipairs(all.hours) do
    if not (latest and hour * K.hour > latest) then
      local rows = K.hour_rows(hour)
      hours[hour] = {rows = rows, late = K.hour_late(hour), size = redis.call('HLEN', rows)}
      redis.call('ZADD', K.hours, hour, hour)
      enter_rows(hours[hour], '', went, all.rows[i], all.updated[i], all.late[i])
      if all.untold[i] ~= '0' then add(hours[hour].rows, '?', all.untold[i]) end
    end
  end
  for i, place in ipairs(places) do
    local keys, at = hours[each.hours[i]], tonumber(place)
    if keys and known[at] then
      enter_rows(keys, members[at], went, each.rows[i], each.updated[i], each.late[i])
    end
  end
  for _, keys in pairs(hours) do  -- to look at every hour is only worth it where there is more to keep
    if redis.call('HLEN', keys.rows) > keys.size then return shorten() end
  end
end
