-- Make substreams idle, so that they do not hold the watermark until their next event. If any substream is unknown or
-- done, no substream changes.
--
-- args   query, members, actor, reason
-- reply  applied
-- errors substream_not_found, substream_done
-- @include parts/steps
-- @include parts/substreams
local query = args.query

return steps.run({
  function(record)
    reply.load()
    record.idle, record.has_left = journal.summary(), false
  end,
  function(record)
    return substreams.check_known(record, query)
  end,
  function(record)
    return steps.check(record, args.stored and args.members, function(piece)
      return (bulk.split_by_set(key.done, piece.members))
    end, function(done)
      values.refuse('substream_done', {query = query, substreams = done})
    end)
  end,
  function(record)
    return substreams.each(record, function(piece)
      local active = bulk.split_by_set(key.last_events(query), piece.members)
      local has_left = #active > 0 and idleness.set_idle(query, active, bulk.zmscore(key.last_events(query), active))
      bulk.zadd_all(key.forced_idle, 1, piece.members)
      journal.add(record.idle, active)
      record.has_left = record.has_left or has_left
    end)
  end,
  function(record)
    if record.idle.count > 0 then journal.write_action('idle', query, record.idle) end
    evaluate.evaluate(record.has_left)
    return reply.finish({applied = record.idle.count > 0})
  end,
})
