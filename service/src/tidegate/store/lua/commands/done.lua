-- Mark substreams as done, so that they never hold the watermark again. If any substream is unknown, no substream
-- changes.
--
-- args   query, members, actor, reason
-- reply  applied
-- errors substream_not_found
-- @include parts/reply
-- @include parts/substreams
local query, members = args.query, args.members
reply.load()
substreams.check_known(query, members)
local active_events, idle_events = bulk.zmscore(key.last_events(query), members), bulk.zmscore(key.idle(query), members)
local new, done, active = {}, {}, {}
for i, member in ipairs(members) do
  local last_event = active_events[i] or idle_events[i]
  if last_event then
    new[#new + 1] = member
    done[#done + 1], done[#done + 2] = last_event, member
    if active_events[i] then active[#active + 1] = member end
  end
end
if #new > 0 then
  idleness.freeze(active)
  bulk.zadd(key.done, nil, done)
  bulk.zadd_all(key.since, values.text(state.job.now), new)
  for _, name in ipairs({key.last_events(query), key.idle(query), key.forced_idle}) do bulk.zrem(name, new) end
  bulk.hdel(key.clock_driven, new)
  journal.write_action('done', query, new)
end
evaluate.evaluate(true)
return reply.finish({applied = #new > 0})
