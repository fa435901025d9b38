-- Release a hold.
--
-- args   hold, actor, reason
-- errors hold_not_found
-- @include parts/reply
reply.load()
if not redis.call('ZSCORE', key.holds, args.hold) then values.refuse('hold_not_found', {hold = args.hold}) end
holds.remove(args.hold)
journal.write_action('release', nil, nil, 'hold', args.hold)
evaluate.evaluate()
return reply.finish()
