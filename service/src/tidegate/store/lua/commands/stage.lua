-- Store the report of one partition until its batch commits.
--
-- args   max_substreams, token, run, batch_id, partition; members, max_event_times, watermarks, rows, future_rows (columns;
--        rows and future_rows may be empty); delayed, delays (columns: members, lists of alternating buckets and rows)
-- reply  applied: false if the batch is already committed
-- errors query_fenced, query_retired, batch_not_begun, event_time_missing, too_many_substreams
-- @include parts/steps
-- @include parts/batches
-- @include parts/tokens
return steps.run({
  function(record)
    reply.load()
    local query = batches.begun_query(args.run, args.batch_id)
    record.is_open = query.open and args.batch_id == query.latest or false
    if record.is_open then observation.look_for_room(record, args.size or #args.members) end
  end,
  function(record)
    return steps.check(record, args.stored and args.members, function(piece)
      observation.count_new(record, args.run.query, piece.members)
      return observation.check(record, piece)
    end, observation.refuse_watermarks)
  end,
  function(record)
    observation.refuse_if_full(record)
    tokens.accept(args.token)
    batches.contact(queries.get(args.run.query))
    if record.is_open and record.future then journal.write_substreams('future', args.run.query, record.future) end
  end,
  function(record)
    if not record.is_open then return end
    return steps.pieces(record, args.stored and args.members, function(piece)
      local kept = observation.set_aside_future(piece)
      staging.add(queries.get(args.run.query), {partition = args.partition, members = kept.members,
        event_times = kept.max_event_times, watermarks = kept.watermarks, counted = piece.members, rows = piece.rows,
        future_rows = piece.future_rows, delayed = piece.delayed, delays = piece.delays})
    end)
  end,
  function(record) return reply.finish({applied = record.is_open}) end,
})
