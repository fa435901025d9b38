-- Start a new incarnation under the same configuration, without a watermark. The journal and the timeline stay.
--
-- args   state_epoch, actor, reason
-- @include parts/reply
-- @include parts/removal
local job = state.job
state.changes.is_step = true  -- also during another command's steps, whose remaining steps are then lost
reply.load()
removal.remove_all()
redis.call('HDEL', key.job, 'steps_argument', 'steps_reply')
state.start(job.incarnation + 1, args.state_epoch, job.now)
reply.remember()
journal.write_action('reset')
substreams.expect_queries({})
return reply.finish()
