-- Apply the staged reports of a batch and account for its rows, exactly once. A large batch commits in steps (see
-- parts/steps).
--
-- args   token, run, batch_id, waited_ms, reported (absent: unknown); members, counts (a column for each row class),
--        disposition (dropped or diverted), hours_of_job and hours (see parts/ledger), or stored pieces of these columns: stored,
--        members (range); joined (absent: see parts/staging): version, count, and ranges of pieces
-- reply  applied: false if the batch was already committed; or join: the version of the reports, which the coordinator
--        must join
-- errors query_fenced, query_retired, batch_not_begun, reports_missing
-- @include parts/steps
-- @include parts/batches
-- @include parts/tokens
-- @include parts/ledger

-- Add a column of counts to the totals of the job and of its substreams.
local function account(class, all, column)
  local total, members, counts = 0, {}, {}
  for i, count in ipairs(column) do
    if count ~= 0 then
      members[#members + 1], counts[#counts + 1] = all[i], count
      total = total + count
      if total > values.HIGHEST / 2 then  -- a larger sum of doubles may be inexact
        bulk.add(key.job, class, total)
        total = 0
      end
    end
  end
  observation.count_rows(class, members, counts)
  if total > 0 then bulk.add(key.job, class, total) end
end

local name = args.run.query
local measure, learn, observe, count, end_batch = batches.commit_staged(name)

return steps.run({
  function(record)
    reply.load()
    local query = batches.begun_query(args.run, args.batch_id)
    record.commits = query.open and args.batch_id == query.latest or false
    local version = record.commits and staging.to_join(query)
    if version then return {map = {join = version}} end
    if record.commits and args.reported then
      local missing = args.reported - staging.count(query)
      if missing > 0 then values.refuse('reports_missing', {query = name, batch_id = args.batch_id, missing = missing}) end
    end
    tokens.accept(args.token)
    batches.contact(query)
    clock.add_outage(query, args.waited_ms)
  end,
  measure,
  learn,
  observe,
  count,
  end_batch,
  function(record)
    if record.commits then evaluate.evaluate(record.has_left) end
  end,
  function(record)
    if not record.commits then return end
    return steps.pieces(record, args.stored and args.members, function(piece)
      for class, column in pairs(piece.counts) do account(class, piece.members, column) end
      if args.disposition == 'diverted' and piece.counts.late then account('diverted', piece.members, piece.counts.late) end
      if ledger.add(piece.hours_of_job, piece.hours, piece.members, args.disposition) then record.has_new_hours = true end
    end)
  end,
  function(record)
    if record.has_new_hours then ledger.trim() end
    return reply.finish({applied = record.commits})
  end,
})
