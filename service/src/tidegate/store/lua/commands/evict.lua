-- Evict substreams; ignore unknown substreams.
--
-- args   query, members, actor, reason
-- reply  applied
-- @include parts/steps
-- @include parts/substreams
return steps.run({
  function(record)
    reply.load()
    record.evicted = journal.summary()
  end,
  function(record)
    return substreams.each(record, function(piece)
      local known = membership.split(piece.members)
      substreams.note_removed(record, known)
      substreams.forget(args.query, known)
      journal.add(record.evicted, known)
    end)
  end,
  substreams.lower_maxima,
  function(record)
    if record.evicted.count > 0 then journal.write_action('evict', args.query, record.evicted) end
    evaluate.evaluate(true)
    return reply.finish({applied = record.evicted.count > 0})
  end,
})
