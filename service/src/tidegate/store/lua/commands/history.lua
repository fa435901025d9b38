-- Read the records of a job, latest first.
--
-- args   first (a time), last ('+', a time, or '(' and an id), limit
-- reply  records, oldest (the oldest record kept; empty: no records); records are entries of the stream
-- @include parts/emission
clock.load()
return emission.watermark_state({
  records = redis.call('XREVRANGE', key.journal, args.last, args.first, 'COUNT', args.limit),
  oldest = redis.call('XRANGE', key.journal, '-', '+', 'COUNT', 1)})
