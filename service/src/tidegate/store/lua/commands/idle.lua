-- Make substreams idle, so that they do not hold the watermark until their next event. If any substream is unknown or
-- done, no substream changes.
--
-- args   query, members, actor, reason
-- reply  applied
-- errors substream_not_found, substream_done
-- @include parts/reply
-- @include parts/substreams
local query, members = args.query, args.members
reply.load()
substreams.check_known(query, members)
local done = bulk.split_by_set(key.done, members)
if #done > 0 then values.refuse('substream_done', {query = query, substreams = done}) end
local active = bulk.split_by_set(key.last_events(query), members)
local has_left = #active > 0 and idleness.set_idle(query, active, bulk.zmscore(key.last_events(query), active))
bulk.zadd_all(key.forced_idle, state.job.observed_now, members)
if #active > 0 then journal.write_action('idle', query, active) end
evaluate.evaluate(has_left)
return reply.finish({applied = #active > 0})
