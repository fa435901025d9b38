-- Start a new incarnation under the same configuration, without a watermark. The journal and the timeline stay.
--
-- args   state_epoch, actor, reason
-- @include parts/reply
-- @include parts/removal
local job = state.job
reply.load()
removal.remove_all()
state.start(job.incarnation + 1, args.state_epoch, job.now)
reply.remember()
journal.write_action('reset')
substreams.expect_queries()
return reply.finish()
