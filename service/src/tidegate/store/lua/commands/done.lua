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
local _, new = bulk.split_by_set(key.done, members)
if #new > 0 then
  local active, idle = bulk.split_by_set(key.last_events(query), new)
  bulk.zadd_each(key.done, bulk.zmscore(key.last_events(query), active), active)
  bulk.zadd_each(key.done, bulk.zmscore(key.idle(query), idle), idle)
  idleness.freeze(active)
  bulk.zadd_all(key.since, state.job.now, new)
  for _, name in ipairs({key.last_events(query), key.idle(query), key.forced_idle}) do bulk.zrem(name, new) end
  bulk.hdel(key.clock_driven, new)
  journal.write_action('done', query, new)
end
evaluate.evaluate(true)
return reply.finish({applied = #new > 0})
