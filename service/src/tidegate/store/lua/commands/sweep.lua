-- Evaluate a job because time has passed. Also the plain read of a watermark, which must not lag behind the clock.
-- @include parts/reply
reply.load()
evaluate.sweep()
return reply.finish()
