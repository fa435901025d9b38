-- Apply the staged reports of a batch and account for its rows, exactly once.
--
-- args   token, run, batch_id, waited_ms, reported (absent: unknown); members, counts (a column for each row class),
--        disposition (dropped or diverted), hours_of_job and hours (see parts/ledger)
-- reply  applied: false if the batch was already committed
-- errors query_fenced, query_retired, batch_not_begun, reports_missing
-- @include parts/reply
-- @include parts/batches
-- @include parts/tokens
-- @include parts/ledger

-- Add a column of counts to the totals of the job and of its substreams.
local function account(class, column)
  local total, members, counts = 0, {}, {}
  for i, count in ipairs(column) do
    if count ~= 0 then
      members[#members + 1], counts[#counts + 1] = args.members[i], count
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

reply.load()
local query = batches.begun_query(args.run, args.batch_id)
local is_open = query.open and args.batch_id == query.latest
local staged = is_open and staging.read(query.name)
if is_open and args.reported and args.reported > staged.count then
  values.refuse('reports_missing', {query = query.name, batch_id = args.batch_id, missing = args.reported - staged.count})
end
tokens.accept(args.token)
batches.contact(query)
clock.add_outage(query, args.waited_ms)
if is_open then
  evaluate.evaluate(batches.commit_staged(query, staged))
  for class, column in pairs(args.counts) do account(class, column) end
  if args.disposition == 'diverted' and args.counts.late then account('diverted', args.counts.late) end
  if #args.hours_of_job > 0 then ledger.add(args.hours_of_job, args.hours, args.members, args.disposition) end
end
return reply.finish({applied = is_open})
