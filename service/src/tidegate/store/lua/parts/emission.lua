-- @include parts/holds
-- @include parts/throttle
-- @include parts/idleness
-- @include parts/clock
-- Emission: the watermark W that clients receive, and its holder. See tidegate.domain.emission.
local above = values.above
local job, config = state.job, state.config
local emission = {}

-- Raise C to a watermark; a lower watermark changes nothing.
function emission.advance(coalesced_watermark)
  if above(coalesced_watermark, job.coalesced_watermark) then
    job.coalesced_watermark, job.coalesced_watermark_since = coalesced_watermark, job.now
  end
end

-- Raise W and C to a watermark that is safe to emit or was emitted before.
function emission.raise_watermark(watermark)
  emission.advance(watermark)
  if above(watermark, job.watermark) then job.watermark, job.watermark_since = watermark, job.now end
end

-- Return the query whose open batch has the lowest pinned watermark, and that watermark.
local function lowest_pin()
  if state.changes.is_plain then return nil end
  return values.lowest_of(key.open_pins)
end

-- Raise W to the lower of C and the lowest pinned watermark of the open batches that are not released.
function emission.emit()
  local watermark = job.coalesced_watermark
  local query, pinned = lowest_pin()
  if query and above(watermark, pinned) then watermark = pinned end
  emission.raise_watermark(watermark)
end

-- Return the sorted sets of the active substreams, each with the number that turns a score into the watermark at the last
-- evaluation, by addition.
function emission.active_sets()
  if not config.has_clock_driven then return {{key.active, 0}} end
  return {{key.active, 0}, {key.constant, 0}, {key.advancing, job.evaluated or 0}}
end

-- Return the rank of the first member after a score (nil: -inf) and a member, in the order of a sorted set.
local function rank_after(name, score, member)
  local bound = score and values.text(score) or '-inf'
  local first, last = redis.call('ZCOUNT', name, '-inf', '(' .. bound), redis.call('ZCOUNT', name, '-inf', bound)
  while first < last do
    local middle = math.floor((first + last) / 2)
    local found = redis.call('ZRANGE', name, middle, middle)[1]
    if found == member or values.sorts_before(found, member) then first = middle + 1 else last = middle end
  end
  return first
end

-- Return the first members of each set with their watermarks (-inf: none), slowest first. after: a member and its
-- watermark, to return only later members; nil: from the start.
function emission.slowest_first(sets, limit, after)
  local rows = {}
  for _, set in ipairs(sets) do
    local score = after and after.watermark and after.watermark - set[2]
    local first = after and rank_after(set[1], score, after.member) or 0
    local found = redis.call('ZRANGE', set[1], first, first + limit - 1, 'WITHSCORES')
    for i = 1, #found, 2 do
      local value = values.number(found[i + 1])
      rows[#rows + 1] = {member = found[i],
        watermark = value and math.min(value + set[2], values.HIGHEST) or -math.huge}
    end
  end
  table.sort(rows, function(a, b)
    if a.watermark ~= b.watermark then return a.watermark < b.watermark end
    return values.sorts_before(a.member, b.member)
  end)
  return rows
end

-- Return the active substream with the lowest watermark, and that watermark at the last evaluation; nil if no substream
-- is active.
function emission.slowest()
  local member, watermark
  for _, set in ipairs(emission.active_sets()) do
    local other, value = values.lowest_of(set[1])
    if other then
      value = value and math.min(value + set[2], values.HIGHEST) or -math.huge
      if not member or value < watermark or (value == watermark and values.sorts_before(other, member)) then
        member, watermark = other, value
      end
    end
  end
  if watermark == -math.huge then watermark = nil end
  return member, watermark
end

-- Return the holder of W; nil if the job is complete or W has no holder.
function emission.held_by()
  local query, pinned = lowest_pin()
  local member, watermark = emission.slowest()
  if query and (not member or above(job.coalesced_watermark, pinned)) then
    local of = queries.get(query)
    return {reason = 'open_batch', query = query, batch_id = of.latest, since_ms = job.watermark_since,
      begun_ms = of.begun}
  end
  if job.is_complete then return nil end
  local since = job.coalesced_watermark_since
  local hold, at_most = holds.lowest()
  local furthest = job.max_watermark
  if member then furthest = watermark end
  if hold and above(furthest, at_most) then return {reason = 'hold', query = '', hold = hold, since_ms = since} end
  if not member then return nil end
  query = policy.query_of(member)
  local name = policy.name_of(member)
  if name == '' then return {reason = 'missing_query', query = query, since_ms = since} end
  local reason = 'slow'
  local observed, outage = clock.observed_time(query)
  local state_of, last_event = idleness.state_of(query, member, observed)
  if state_of == 'blocked' then
    reason = 'blocked'
  elseif not watermark and not values.number(redis.call('ZSCORE', key.max_event_times, member)) then
    reason = 'never_reported'
  end
  return {reason = reason, query = query, substream = name, since_ms = since, last_event_ms = last_event + outage}
end

-- Return tidegate.domain.results.WatermarkState, with additional members.
function emission.watermark_state(members)
  local found = members or {}
  local holder = state.changes.held_by or emission.held_by()
  found.incarnation, found.state_epoch, found.now_ms = job.incarnation, job.state_epoch, job.now
  found.watermark, found.coalesced_watermark = job.watermark, job.coalesced_watermark
  found.complete, found.held_by = job.is_complete and true, holder and {map = holder}
  return {map = found}
end

return emission
