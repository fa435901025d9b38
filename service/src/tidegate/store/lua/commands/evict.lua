-- Evict substreams; ignore unknown substreams.
--
-- args   query, members, actor, reason
-- reply  applied
-- @include parts/reply
-- @include parts/substreams
reply.load()
local known = membership.split(args.members)
substreams.forget(args.query, known)
if #known > 0 then journal.write_action('evict', args.query, known) end
evaluate.evaluate(true)
return reply.finish({applied = #known > 0})
