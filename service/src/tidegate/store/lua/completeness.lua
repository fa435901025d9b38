-- @include job
-- Rows, late rows and delays, as in tidegate.domain.completeness.
local config = state.config
local ledger, sketch = {}, {}

-- The ledger: numbers of rows, updated rows and late rows by hour of event time

-- Add the rows of a batch by hour. Return whether an hour has a new entry.
--
-- of_job: rows of the job as texts, and unattributed rows, which have no substream. hours: columns with an entry per
-- member and hour: places (of the members), hours, rows; updated and late (empty: none). known: a table in which the
-- members that the job has are true. latest: the latest event time that is accepted (nil: any).
function ledger.add(of_job, hours, members, disposition, known, latest)
  local by_hour = {}
  -- Return the keys of an hour, and the columns for its counters; nil if the hour is too far ahead of the clock.
  local function add_hour(number)
    if latest and number * constants.HOUR > latest then return nil end
    local hour = values.text(number)
    if not by_hour[number] then
      local rows = key.hour_rows(hour)
      by_hour[number] = {hour = hour, rows = rows, late = key.hour_late(hour), size = redis.call('HLEN', rows), members = {},
        counts = {}, late_fields = {}, late_counts = {}}
    end
    return by_hour[number]
  end
  local function add_late(columns, field, count)
    local at = #columns.late_fields + 1
    columns.late_fields[at], columns.late_counts[at] = field, count
  end
  for _, row in ipairs(of_job) do
    local columns = add_hour(row.hour)
    if columns then
      redis.call('ZADD', key.hours, columns.hour, columns.hour)
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

-- Sketches of delays, bit for bit as in the model. A stored sketch is a packed list of step, position, buckets and
-- weights. Stored buckets are sorted, because sorting would slow a function that reads many sketches.
local ROW, MAX_WEIGHT, MAX_BUCKETS = constants.ROW, constants.MAX_WEIGHT, constants.MAX_BUCKETS
local STEPS, HIGHEST_BUCKET, GAMMA = constants.STEPS, constants.HIGHEST_BUCKET, constants.GAMMA
local edges

-- Return the edges of the buckets, computed on first use.
function sketch.edges()
  if not edges then
    edges = {[0] = 0, 1}
    for bucket = 2, HIGHEST_BUCKET do edges[bucket] = edges[bucket - 1] * GAMMA end
  end
  return edges
end

function sketch.bucket_of(delay)
  if delay <= 0 then return 0 end
  local low, high = 0, HIGHEST_BUCKET
  while high - low > 1 do
    local middle = math.floor((low + high) / 2)
    if sketch.edges()[middle] < delay then low = middle else high = middle end
  end
  return high
end

function sketch.typical(bucket) return math.floor(sketch.edges()[bucket] * 2 / (GAMMA + 1) + 0.5) end

function sketch.decayed(weight, steps)
  local halvings = math.floor(steps / STEPS)
  if halvings >= 60 then return 0 end
  return math.floor(math.floor(weight * constants.DECAY[steps - STEPS * halvings + 1]) * 2 ^ -halvings)
end

-- Return an eighth of the half-life.
function sketch.step() return math.max(1, math.floor(config.delay_half_life_ms / STEPS)) end

-- Return the number of whole steps in a time, exact on doubles.
function sketch.steps_in(time, step)
  local steps = (time - values.modulo(time, step)) / step
  local whole = math.floor(steps)
  return steps - whole < 0.5 and whole or whole + 1
end

function sketch.unpack(packed)
  if not packed then return {step = 0, position = 0, buckets = {}, weights = {}} end
  local kept = cmsgpack.unpack(packed)
  return {step = kept[1], position = kept[2], buckets = kept[3], weights = kept[4]}
end

function sketch.pack(s) return cmsgpack.pack({s.step, s.position, s.buckets, s.weights}) end

-- Decay to a max event time; return the number of steps.
function sketch.decay_to(s, max_event_time)
  local step = sketch.step()
  local position = sketch.steps_in(max_event_time, step)
  if step ~= s.step then
    s.step, s.position = step, position
    return 0
  end
  local steps = position - s.position
  if steps <= 0 then return 0 end
  s.position = position
  local buckets, weights = {}, {}
  for i, weight in ipairs(s.weights) do
    weight = sketch.decayed(weight, steps)
    if weight > 0 then buckets[#buckets + 1], weights[#weights + 1] = s.buckets[i], weight end
  end
  s.buckets, s.weights = buckets, weights
  return steps
end

-- Return the index of a bucket in a sorted list; for a missing bucket, the index at which it belongs.
local function place_of(buckets, bucket)
  local low, high = 1, #buckets + 1
  while low < high do
    local middle = math.floor((low + high) / 2)
    if buckets[middle] < bucket then low = middle + 1 else high = middle end
  end
  return low
end

-- Merge the lowest buckets beyond MAX_BUCKETS, except bucket 0, into the lowest kept bucket.
local function bound(s)
  local first = s.buckets[1] == 0 and 2 or 1
  local excess = #s.buckets - (first - 1) - MAX_BUCKETS
  if excess <= 0 then return end
  local buckets, weights = {}, {}
  if first == 2 then buckets[1], weights[1] = 0, s.weights[1] end
  for i = first + excess, #s.buckets do buckets[#buckets + 1], weights[#weights + 1] = s.buckets[i], s.weights[i] end
  for i = first, first + excess - 1 do weights[first] = math.min(weights[first] + s.weights[i], MAX_WEIGHT) end
  s.buckets, s.weights = buckets, weights
end

local function weight_of_rows(count) return math.min(count, MAX_WEIGHT / ROW) * ROW end

function sketch.add(s, rows)
  local buckets, weights, new = s.buckets, s.weights, {}
  for bucket, count in pairs(rows) do
    local at = place_of(buckets, bucket)
    if buckets[at] == bucket then
      weights[at] = math.min(weights[at] + weight_of_rows(count), MAX_WEIGHT)
    elseif count > 0 then
      new[#new + 1] = bucket
    end
  end
  if #new == 0 then return end
  table.sort(new)
  local old, left = #buckets, #new
  for at = old + left, 1, -1 do
    if left == 0 then break end
    if old > 0 and buckets[old] > new[left] then
      buckets[at], weights[at] = buckets[old], weights[old]
      old = old - 1
    else
      buckets[at], weights[at] = new[left], weight_of_rows(rows[new[left]])
      left = left - 1
    end
  end
  bound(s)
end

function sketch.weight(s)
  local total = 0
  for _, weight in ipairs(s.weights) do total = total + weight end
  return total
end

-- Return the lowest whole lag with at most this weight above it.
function sketch.lag_for(s, beyond)
  local total = 0
  for i = #s.buckets, 1, -1 do
    total = total + s.weights[i]
    if total > beyond then return math.floor(sketch.edges()[s.buckets[i]]) end
  end
  return 0
end

function sketch.reply(packed)
  if not packed then return nil end
  local s = sketch.unpack(packed)
  return {map = {step = s.step, position = s.position, buckets = s.buckets, weights = s.weights}}
end

return ledger, sketch
