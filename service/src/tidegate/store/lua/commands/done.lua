-- Mark substreams as done, so that they never hold the watermark again. If any substream is unknown, no substream
-- changes.
--
-- args   query, members, actor, reason
-- reply  applied
-- errors substream_not_found
-- @include parts/steps
-- @include parts/substreams
local query = args.query

local function set_done(members)
  local active, idle = bulk.split_by_set(key.last_events(query), members)
  bulk.zadd_each(key.done, bulk.zmscore(key.last_events(query), active), active)
  bulk.zadd_each(key.done, bulk.zmscore(key.idle(query), idle), idle)
  idleness.freeze(active)
  idleness.freeze((bulk.split(idle, advancing.idle_ones(idle))))
  bulk.zadd_all(key.since, state.job.now, members)
  for _, name in ipairs({key.last_events(query), key.idle(query), key.forced_idle}) do bulk.zrem(name, members) end
  bulk.hdel(key.clock_driven, members)
end

return steps.run({
  function(record)
    reply.load()
    record.done = journal.summary()
  end,
  function(record)
    return substreams.check_known(record, query)
  end,
  function(record)
    return substreams.each(record, function(piece)
      local _, new = bulk.split_by_set(key.done, piece.members)
      set_done(new)
      journal.add(record.done, new)
    end)
  end,
  function(record)
    if record.done.count > 0 then journal.write_action('done', query, record.done) end
    evaluate.evaluate(true)
    return reply.finish({applied = record.done.count > 0})
  end,
})
