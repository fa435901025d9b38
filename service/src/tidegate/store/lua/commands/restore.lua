-- Raise the watermarks of known substreams, and raise C to the lowest watermark of all substreams. Holds limit C; the
-- throttle does not. Runs in steps (see parts/steps).
--
-- args   query, members, watermarks (columns), actor, reason
-- reply  applied
-- errors job_complete, substream_not_found
-- @include parts/steps
-- @include parts/substreams
local job, number, score = state.job, values.number, values.score
local query = args.query

-- Restore a substream that is done or does not follow the clock.
local function restore_flat(member, watermark, is_active)
  local event_times = max_event_times.of({member})
  redis.call('ZADD', is_active and key.active or key.frozen, score(watermark), member)
  max_event_times.store({member}, event_times)
  local packed = redis.call('HGET', key.clock_driven, member)
  if packed then
    local s = clock_driven.read(packed)
    s.own = watermark
    clock_driven.write(member, s)
  end
end

local function restore(record, piece)
  local members = piece.members
  local active, frozen, driven, watermarks = bulk.zmscore(key.active, members), bulk.zmscore(key.frozen, members), {}, {}
  for i, member in ipairs(members) do
    local watermark = piece.watermarks[i]
    if not active[i] and not frozen[i] then  -- follows the clock
      driven[#driven + 1], watermarks[member] = member, watermark
    elseif values.above(watermark, number(active[i] or frozen[i])) then
      restore_flat(member, watermark, active[i])
      journal.add(record.restored, {member})
    end
  end
  local idle = advancing.idle_ones(driven)
  advancing.each_materialized(driven, function(member, s, rule, _, i)
    if not values.above(watermarks[member], s.own) then return end
    s.own = watermarks[member]
    advancing.place(member, s, rule, idle[i])
    journal.add(record.restored, {member})
  end)
end

return steps.run({
  function(record)
    reply.load()
    if job.is_complete then values.refuse('job_complete') end
    record.restored, record.lowest = journal.summary(), math.huge
  end,
  function(record)
    return substreams.check_known(record, query)
  end,
  function(record)
    return substreams.each(record, function(piece) restore(record, piece) end)
  end,
  function(record)
    if record.restored.count == 0 then return end
    return steps.each(record, advancing.sets(), function(members)
      advancing.each_materialized(members, function(_, s) record.lowest = math.min(record.lowest, s.own or -math.huge) end)
    end)
  end,
  function(record)
    if record.restored.count == 0 then return reply.finish({applied = false}) end
    local lowest = record.lowest
    job.evaluate_each, job.evaluation_due = 1, 1
    for _, name in ipairs({key.active, key.frozen}) do
      local first, watermark = values.lowest_of(name)
      if first then lowest = math.min(lowest, watermark or -math.huge) end
    end
    journal.write_action('restore', query, record.restored)
    lowest = holds.cap(lowest)
    if lowest > -math.huge then emission.advance(lowest) end
    emission.emit()
    return reply.finish({applied = true})
  end,
})
