-- Store the report of one partition until its batch commits.
--
-- args   max_substreams, token, run, batch_id, partition; members, max_event_times, watermarks, rows, future_rows (columns;
--        rows and future_rows may be empty); delayed, delays (columns: members, lists of alternating buckets and rows)
-- reply  applied: false if the batch is already committed
-- errors query_fenced, query_retired, batch_not_begun, event_time_missing, too_many_substreams
-- @include parts/reply
-- @include parts/batches
-- @include parts/tokens
reply.load()
local query = batches.begun_query(args.run, args.batch_id)
observation.check_event_times(args.members, args.max_event_times, args.watermarks)
local is_open = query.open and args.batch_id == query.latest
if is_open then observation.check_room(args.members) end
tokens.accept(args.token)
batches.contact(query)
if is_open then
  local members, event_times, watermarks =
    observation.set_aside_future(query.name, args.members, args.max_event_times, args.watermarks)
  staging.add(query, {partition = args.partition, members = members, event_times = event_times,
    watermarks = watermarks, counted = args.members, rows = args.rows, future_rows = args.future_rows,
    delayed = args.delayed, delays = args.delays})
end
return reply.finish({applied = is_open})
