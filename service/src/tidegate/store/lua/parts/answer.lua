-- @include parts/look
-- @include parts/lags
-- The record that every command answers with, see tidegate.domain.records.Answer; and when the job is to be looked at next.

-- The live substream that is furthest behind, and its reading at the last look; nil without any.
local function furthest_behind()
  local member, reading
  for _, place_ in ipairs({{K.live, 0}, {K.still, 0}, {K.drift, J.look or 0}}) do
    local other, value = lowest_of(place_[1])
    if other then
      value = value and math.min(value + place_[2], HIGHEST) or -math.huge
      if not member or value < reading or (value == reading and sorts_before(other, member)) then
        member, reading = other, value
      end
    end
  end
  if reading == -math.huge then reading = nil end
  return member, reading
end

local function holder()
  local query, pin = lowest_of(K.open)
  local member, reading = furthest_behind()
  if query and (not member or above(J.coalesced, pin)) then
    local fields = redis.call('HMGET', K.query(query), 'latest', 'begun')
    return {'open_batch', query, false, fields[1], out(J.watermark_since), false, false, fields[2]}
  end
  if J.complete then return false end
  local hold, at_most = lowest_hold()
  local furthest = J.lead
  if member then furthest = reading end
  if hold and above(furthest, at_most) then
    return {'hold', '', false, false, out(J.coalesced_since), hold, false, false}
  end
  if not member then return false end
  query = query_of(member)
  local name = name_of(member)
  if name == '' then return {'missing_query', query, false, false, out(J.coalesced_since), false, false, false} end
  local reason = 'slow'
  local last_event = tonumber(redis.call('ZSCORE', K.expiry(query), member))
  local observed, lost = observed_by(query)
  if R.idle_timeout and observed - last_event >= R.idle_timeout then
    reason = 'blocked'
  elseif not reading and not num(redis.call('ZSCORE', K.tops, member)) then
    reason = 'never_reported'
  end
  return {reason, query, name, false, out(J.coalesced_since), false, fmt(last_event + lost), false}
end

local function answer(...)
  return {'ok', fmt(J.incarnation), J.epoch, fmt(J.now), out(J.watermark), out(J.coalesced),
    J.complete and '1' or '0', J.held or holder(), ...}
end

-- When time will next change something, in observed time; nil if it will not.
local function next_change_of_job()
  if J.complete then return nil end
  if J.more then return J.t end
  local times = {}
  local function at(time) times[#times + 1] = time end
  if R.idle_timeout then
    local member, last_event = lowest_of(K.expiry(''))
    if member then at(last_event + R.idle_timeout) end
  end
  if R.clocked then
    local member, due = lowest_of(K.due)
    if member then at(math.max(due or J.t, J.t)) end
    if redis.call('EXISTS', K.drift) == 1 then at(J.t + 1) end
    -- While nobody looked wall clocks went on, and those who follow one have not been told yet.
    local told = J.look_lost == nil or J.look_lost == J.lost
    if not told and redis.call('EXISTS', K.still, K.drift) > 0 then at(J.t) end
  end
  if R.max_retention then
    local _, hold = lowest_hold()
    local function would_be_emitted(value)
      return value and above(candidate(hold and math.min(value, hold) or value), J.coalesced)
    end
    if J.retention == '' then
      if would_be_emitted(J.lead) then at(J.t) end
    else
      local h = history_of(split(J.retention, ','), 1)
      local change = would_be_emitted(h.cells[1]) and J.t or next_change(h, would_be_emitted)
      if change then at(change) end
    end
  end
  if R.query_timeout then
    local query, contact = lowest_of(K.contact)
    if query then at(contact + R.query_timeout) end
  end
  if R.max_batch_hold then
    local query, begun = lowest_of(K.begun)
    if query and begun < math.huge then at(begun + R.max_batch_hold) end
  end
  local hold, expires = lowest_of(K.hold_expiry)
  if hold then at(expires - J.lost) end
  if #times == 0 then return nil end
  local first = times[1]
  for _, time in ipairs(times) do first = math.min(first, time) end
  return first
end

-- Enters the job where sweepers look for those that are due; it is there while time can change anything. A job that
-- waits is looked at now and then, for a long time without a look is what nobody's silence is known by.
local function schedule()
  local due = next_change_of_job()
  J.next_change = due
  if given_now ~= '' then return end
  if not due then
    if J.due then redis.call('ZREM', K.sweeps, K.name) end
    J.due = nil
    return
  end
  due = math.min(math.max(due + J.lost, J.now), J.now + K.touch_ms)
  if not J.due or due < J.due or J.due <= J.now then
    redis.call('ZADD', K.sweeps, fmt(due), K.name)
    J.due = due
  end
end

-- The end of every command that may have changed something: what moved is recorded, and all of it is kept.
local function reply(...)
  if J.absent then record('unattended', 'unattended_ms', fmt(J.absent)) end
  J.held = holder()
  if J.looked and above(J.coalesced, J.looked_from) then count_wait(J.looked_from, (furthest_behind())) end
  if J.coalesced ~= J.coalesced_before or J.watermark ~= J.watermark_before then
    local held = J.held or {}
    local kind = 'coalesced_watermark'
    if J.watermark ~= J.watermark_before then
      kind = 'emission'
      J.emissions = (J.emissions or 0) + 1
    end
    record(kind, 'coalesced_watermark', out(J.coalesced), 'watermark', out(J.watermark), 'held_by', held[1],
      'query', held[2], 'substream', held[3], 'batch_id', held[4], 'hold', held[6],
      'limits', #PASSED > 0 and cjson.encode(PASSED) or nil)
  end
  schedule()
  save_job()
  if RECORDED then announce() end
  return answer(...)
end
