-- Sweep a job, and return its records after a record that the client has.
--
-- args   after (id of that record; absent: none), limit
-- reply  newest (id of the newest record), known (the record that the client has; empty if the journal no longer
--        keeps it, and later records may be lost), records (the later records); records are entries of the stream
-- @include parts/reply
reply.load()
evaluate.sweep_for_read()
local found = reply.finish()
local known = args.after and redis.call('XRANGE', key.journal, args.after, args.after) or {}
found.map.newest = redis.call('XREVRANGE', key.journal, '+', '-', 'COUNT', 1)[1][1]
found.map.known = known
found.map.records = #known > 0 and redis.call('XRANGE', key.journal, '(' .. args.after, '+', 'COUNT', args.limit) or {}
return found
