-- Return some of the staged reports of a query, which the coordinator joins before the batch commits (see parts/staging).
--
-- args   query, cursor (0: the first reports)
-- reply  cursor (0: no more reports), reports: each with its order, and members, event_times, watermarks, counted, rows,
--        future_rows, delayed and delays (columns)
-- @include parts/clock
clock.read()
local cursor, found = unpack(redis.call('HSCAN', key.staged(args.query), args.cursor, 'COUNT', 1))
local reports = {}
for i = 2, #found, 2 do
  local order, report = cmsgpack.unpack(found[i])
  report.order, reports[#reports + 1] = order, {map = report}
end
return {map = {cursor = cursor, reports = reports}}
