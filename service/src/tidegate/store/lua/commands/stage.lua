-- Store the report of one partition until its batch commits.
--
-- args   max_substreams, token, run, batch_id, partition; members, max_event_times, watermarks, rows, future_rows (columns;
--        rows and future_rows may be empty); delayed, delays (columns: members, lists of alternating buckets and rows)
-- reply  applied: false if the batch is already committed
-- errors query_fenced, query_retired, batch_not_begun, event_time_missing, too_many_substreams
-- @include parts/reply
-- @include parts/batches
-- @include parts/tokens
local number, text = values.number, values.text

local function stage_by_partition(name, members, column)
  for i, member in ipairs(members) do
    local value = column[i]
    if value and value ~= cjson.null then
      if type(value) == 'number' then value = text(value) else value = cjson.encode(value) end
      redis.call('HSET', name, args.partition .. ' ' .. member, value)
    end
  end
end

local function stage_highest(name, members, column)
  local scored = {}
  for i, member in ipairs(members) do
    if number(column[i]) then scored[#scored + 1], scored[#scored + 2] = text(column[i]), member end
  end
  bulk.zadd(name, 'GT', scored)
end

reply.load()
local query = batches.begun_query(args.run, args.batch_id)
observation.check_event_times(args.members, args.max_event_times, args.watermarks)
local is_open = query.open and args.batch_id == query.latest
if is_open then observation.check_room(args.members) end
tokens.accept(args.token)
batches.contact(query)
if is_open then
  local name = query.name
  stage_by_partition(key.staged_rows(name), args.members, args.rows)
  stage_by_partition(key.staged_future_rows(name), args.members, args.future_rows)
  stage_by_partition(key.staged_delays(name), args.delayed, args.delays)
  local members, event_times, watermarks =
    observation.set_aside_future(name, args.members, args.max_event_times, args.watermarks)
  stage_highest(key.staged_event_times(name), members, event_times)
  stage_highest(key.staged_watermarks(name), members, watermarks)
end
return reply.finish({applied = is_open})
