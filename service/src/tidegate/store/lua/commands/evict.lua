-- Evict substreams; ignore unknown substreams.
--
-- args   query, members, actor, reason
-- reply  applied
-- @include parts/reply
-- @include parts/substreams
reply.load()
local found, known = bulk.zmscore(key.max_event_times, args.members), {}
for i, member in ipairs(args.members) do
  if found[i] then known[#known + 1] = member end
end
substreams.forget(args.query, known)
if #known > 0 then journal.write_action('evict', args.query, known) end
evaluate.evaluate(true)
return reply.finish({applied = #known > 0})
