-- Evaluate a job because time has passed. Reads of a watermark also use this command, because watermarks may follow the
-- clock.
-- @include parts/reply
reply.load()
evaluate.sweep()
return reply.finish()
