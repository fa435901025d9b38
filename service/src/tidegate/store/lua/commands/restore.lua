-- Raise the watermarks of known substreams, and raise C to the lowest watermark of all substreams. Holds limit C; the
-- throttle does not.
--
-- args   query, members, watermarks (columns), actor, reason
-- reply  applied
-- errors job_complete, substream_not_found
-- @include parts/reply
-- @include parts/substreams
local job, number, score = state.job, values.number, values.score
local query, members = args.query, args.members
reply.load()
if job.is_complete then values.refuse('job_complete') end
substreams.check_known(query, members)

local driven = {}  -- the active substreams that follow the clock
advancing.each_materialized(function(member, s, rule) driven[member] = {s = s, rule = rule} end)

-- Restore a substream that is idle or does not follow the clock.
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

local active, frozen, new = bulk.zmscore(key.active, members), bulk.zmscore(key.frozen, members), {}
for i, member in ipairs(members) do
  local watermark, own = args.watermarks[i], number(active[i] or frozen[i])
  if driven[member] then own = driven[member].s.own end
  if values.above(watermark, own) then
    new[#new + 1] = member
    if driven[member] then driven[member].s.own = watermark else restore_flat(member, watermark, active[i]) end
  end
end
if #new == 0 then return reply.finish({applied = false}) end

local lowest = math.huge
for member, one in pairs(driven) do
  advancing.place(member, one.s, one.rule)
  lowest = math.min(lowest, one.s.own or -math.huge)
end
job.evaluate_each, job.evaluation_due = 1, 1
for _, name in ipairs({key.active, key.frozen}) do
  local first, watermark = values.lowest_of(name)
  if first then lowest = math.min(lowest, watermark or -math.huge) end
end
journal.write_action('restore', query, new)
lowest = holds.cap(lowest)
if lowest > -math.huge then emission.advance(lowest) end
emission.emit()
return reply.finish({applied = true})
