-- Read the samples of a job, oldest first.
--
-- args   interval_ms, limit (number of samples)
-- reply  samples (texts, see parts/timeline)
-- @include parts/emission
clock.load()
return emission.watermark_state({samples = redis.call('LRANGE', key.timeline(args.interval_ms), -args.limit, -1)})
