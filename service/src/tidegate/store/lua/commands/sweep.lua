-- Applies the time that has passed; also the plain read of a job's watermark, which must not lag behind the clock.
-- @include parts/reply
reply.load()
evaluate.sweep()
return reply.finish()
