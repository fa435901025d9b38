-- @include batches
-- The commands of a job, except those of batches (batches.lua) and of its configuration (configure.lua).
--
-- Each command checks its arguments, advances the clock of the job, changes the state, evaluates the job if watermarks may
-- move, and replies. A command that names members runs in steps (see steps.lua). All commands except report are actions of
-- an operator: they also have the arguments actor and reason, and most of them reply `applied`. An action on substreams
-- has the arguments query and members.
local number, score, highest, above = values.number, values.score, values.highest, values.above
local job, config = state.job, state.config

-- Report: apply event times and watermarks immediately, without a batch.
-- args   max_substreams; tokens (of the clients that sent the reports); members, max_event_times, watermarks,
--        min_event_times (columns); delayed, delays (columns: members, lists of alternating buckets and rows; may be
--        absent); or stored pieces of these columns: stored, size (number of members), members and delayed (ranges)
-- reply  applied; without_effect (members; absent if the columns were stored)
-- errors job_complete, event_time_missing, too_many_substreams

-- Return the lowest event time, which limits watermarks that follow the clock; infinite if there are no such watermarks.
local function lowest_event_time(report)
  local event_times, min_event_times = report.max_event_times, report.min_event_times
  if not config.has_followers and #event_times > 0 then return math.huge end
  local lowest
  for i, event_time in ipairs(event_times) do
    local time = number(event_time) and (number(min_event_times[i]) or number(event_time))
    if time and (not lowest or time < lowest) then lowest = time end
  end
  return lowest
end

local function missing_from(names, members)
  if #names == #members then return {} end
  local has_effect, missing = {}, {}
  for _, name in ipairs(names) do has_effect[name] = true end
  for _, member in ipairs(members) do
    if not has_effect[member] then missing[#missing + 1] = member end
  end
  return missing
end

function commands.report()
  local measure, learn = delays.phases('', function(progress, visit)
    return steps.pieces(progress, args.stored and args.delayed, visit)
  end, emission.merged_watermark)
  return steps.run({
    function(progress)
      reply.load()
      if not args.stored then state.look_for_rare_sets() end
      if job.is_complete then values.refuse('job_complete') end
      observation.look_for_room(progress, args.size or #args.members)
    end,
    function(progress) return observation.check_members(progress, '') end,
    function(progress)
      observation.refuse_if_full(progress)
      for _, token in ipairs(args.tokens) do emission.accept_token(token) end
      job.last_contact = job.now
      if progress.future then history.write_substreams('future', '', progress.future) end
    end,
    measure, learn,
    function(progress)
      progress.active = progress.active or history.summary()
      return steps.members(progress, function(piece)
        local kept = observation.set_aside_future(piece)
        local names, active = observation.observe('', kept, job.observed_now, piece.members)
        history.add(progress.active, active)
        progress.applied = progress.applied or #names > 0
        progress.lowest = math.min(lowest_event_time(kept) or math.huge, progress.lowest or math.huge)
        if not args.stored then progress.without_effect = missing_from(names, piece.members) end
      end)
    end,
    function(progress)
      history.write_substreams('active', '', progress.active)
      if (args.size or #args.members) > 0 then frames.miss_rows() end
      evaluate.after_report(progress.lowest)
      return reply.finish({applied = progress.applied, without_effect = progress.without_effect})
    end,
  })
end

-- Substreams

-- Refuse a command if one of its members is unknown. Return whether pieces remain.
local function check_known(progress)
  return steps.check(progress, function(piece)
    local _, unknown = membership.split(piece.members)
    return unknown
  end, function(unknown)
    values.refuse('substream_not_found', {query = args.query, substreams = unknown})
  end)
end

-- End an action on substreams. changed: a summary of the members that it has changed. has_left: see evaluate.evaluate.
local function finish_action(action, changed, has_left)
  if changed.count > 0 then history.write_action(action, args.query, changed) end
  evaluate.evaluate(has_left)
  return reply.finish({applied = changed.count > 0})
end

-- Declare: make substreams known before their first event, so that they hold the watermark from the start. The watermark
-- does not move.
-- args   max_substreams, query, members, max_event_times (columns; false: unknown)
-- errors job_complete, too_many_substreams

-- Return the new members of a piece, and a report of the members that have no event time yet.
local function changes_of(piece)
  local members = piece.members
  local known, done, before = membership.known(members), bulk.zmscore(key.done, members), max_event_times.of(members)
  local new, unseen = {}, {members = {}, max_event_times = {}, watermarks = {}}
  for i, member in ipairs(members) do
    if not known[i] then new[#new + 1] = member end
    if number(piece.max_event_times[i]) and not before[i] and not done[i] and not job.is_complete then
      local at = #unseen.members + 1
      unseen.members[at], unseen.max_event_times[at] = member, piece.max_event_times[i]
    end
  end
  return new, unseen
end

local function declare(progress, piece)
  local query, new, unseen = args.query, changes_of(piece)
  local observed = queries.observed_time(query)
  if #new > 0 then observation.add_substreams(query, new, observed) end
  unseen = observation.set_aside_future(unseen)
  local _, active = observation.observe(query, unseen, observed)
  history.add(progress.active, active)
  progress.is_observed = progress.is_observed or #unseen.members > 0
  local is_affected, affected = {}, {}
  for _, list in ipairs({new, unseen.members}) do
    for _, member in ipairs(list) do is_affected[member] = true end
  end
  for _, member in ipairs(piece.members) do
    if is_affected[member] then affected[#affected + 1] = member end
  end
  history.add(progress.affected, affected)
end

function commands.declare()
  local query = args.query
  return steps.run({
    function(progress)
      reply.load()
      progress.affected, progress.active = history.summary(), history.summary()
      observation.look_for_room(progress, args.size or #args.members)
    end,
    steps.each_piece(function(progress, piece)
      local new, unseen = changes_of(piece)
      if #new > 0 and job.is_complete then values.refuse('job_complete') end
      observation.count_new(progress, query, piece.members)
      observation.check(progress, unseen)
    end),
    function(progress)
      observation.refuse_if_full(progress)
      if progress.future then history.write_substreams('future', query, progress.future) end
    end,
    steps.each_piece(declare),
    function(progress)
      history.write_substreams('active', query, progress.active)
      if progress.is_observed then
        job.evaluation_due = 1
        -- Computed watermarks assume that only evaluations sample a history.
        if config.has_followers then job.evaluate_each = 1 end
        frames.miss_rows()
      end
      if progress.affected.count > 0 then history.write_action('declare', query, progress.affected) end
      return reply.finish({applied = progress.affected.count > 0})
    end,
  })
end

-- Restore: raise the watermarks of known substreams, and raise C to the lowest watermark of all substreams. Holds limit C;
-- the throttle does not.
-- args   query, members, watermarks (columns)
-- errors job_complete, substream_not_found

-- Restore a substream that is done or does not follow the clock.
local function restore_flat(member, watermark, is_active)
  local event_times = max_event_times.of({member})
  redis.call('ZADD', is_active and key.active or key.frozen, score(watermark), member)
  max_event_times.store({member}, event_times)
  local packed = redis.call('HGET', key.clock_driven, member)
  if packed then
    local s = follower.read(packed)
    s.own = watermark
    follower.write(member, s)
  end
end

local function restore(progress, piece)
  local members = piece.members
  local active, frozen = bulk.zmscore(key.active, members), bulk.zmscore(key.frozen, members)
  local follower_members, watermarks = {}, {}
  for i, member in ipairs(members) do
    local watermark = piece.watermarks[i]
    if not active[i] and not frozen[i] then  -- follows the clock
      follower_members[#follower_members + 1], watermarks[member] = member, watermark
    elseif values.above(watermark, number(active[i] or frozen[i])) then
      restore_flat(member, watermark, active[i])
      history.add(progress.restored, {member})
    end
  end
  local idle = followers.idle_ones(follower_members)
  followers.each_materialized(follower_members, function(member, s, rule, _, i)
    if not values.above(watermarks[member], s.own) then return end
    s.own = watermarks[member]
    followers.place(member, s, rule, idle[i])
    history.add(progress.restored, {member})
  end)
end

function commands.restore()
  return steps.run({
    function(progress)
      reply.load()
      if job.is_complete then values.refuse('job_complete') end
      progress.restored, progress.lowest = history.summary(), math.huge
    end,
    check_known,
    steps.each_piece(restore),
    function(progress)
      if progress.restored.count == 0 then return end
      return steps.each(progress, followers.sets(), function(members)
        followers.each_materialized(members, function(_, s)
          progress.lowest = math.min(progress.lowest, s.own or -math.huge)
        end)
      end)
    end,
    function(progress)
      if progress.restored.count == 0 then return reply.finish({applied = false}) end
      local lowest = progress.lowest
      job.evaluate_each, job.evaluation_due = 1, 1
      for _, name in ipairs({key.active, key.frozen}) do
        local first, watermark = values.lowest_of(name)
        if first then lowest = math.min(lowest, watermark or -math.huge) end
      end
      history.write_action('restore', args.query, progress.restored)
      lowest = holds.cap(lowest)
      if lowest > -math.huge then emission.advance(lowest) end
      emission.emit()
      return reply.finish({applied = true})
    end,
  })
end

-- Idle: make substreams idle, so that they do not hold the watermark until their next event. If any substream is unknown or
-- done, no substream changes.
-- errors substream_not_found, substream_done
function commands.idle()
  local query = args.query
  return steps.run({
    function(progress)
      reply.load()
      progress.idle, progress.has_left = history.summary(), false
    end,
    check_known,
    function(progress)
      return steps.check(progress, function(piece)
        return (bulk.split_by_set(key.done, piece.members))
      end, function(done)
        values.refuse('substream_done', {query = query, substreams = done})
      end)
    end,
    steps.each_piece(function(progress, piece)
      local active = bulk.split_by_set(key.last_events(query), piece.members)
      local has_left = #active > 0 and idleness.set_idle(query, active, bulk.zmscore(key.last_events(query), active))
      bulk.zadd_all(key.forced_idle, 1, piece.members)
      history.add(progress.idle, active)
      progress.has_left = progress.has_left or has_left
    end),
    function(progress) return finish_action('idle', progress.idle, progress.has_left) end,
  })
end

-- Done: end substreams, so that they never hold the watermark again. If any substream is unknown, no substream changes.
-- errors substream_not_found
function commands.done()
  local query = args.query
  return steps.run({
    function(progress)
      reply.load()
      progress.done = history.summary()
    end,
    check_known,
    steps.each_piece(function(progress, piece)
      history.add(progress.done, observation.end_substreams(query, piece.members))
    end),
    function(progress) return finish_action('done', progress.done, true) end,
  })
end

-- The removal of substreams
local ROW_CLASSES = {'reported_rows', 'future_rows', 'on_time', 'updated', 'late', 'null_event_time', 'future', 'diverted'}

-- Return the fields of members in key.rows.
local function row_fields(class, members)
  local fields = {}
  for i, member in ipairs(members) do fields[i] = class .. ' ' .. member end
  return fields
end

-- Return the highest watermark and the highest max event time of members, and of two earlier results.
local function highest_of(members, watermark, event_time)
  for _, value in ipairs(membership.watermarks(members)) do watermark = highest(value or nil, watermark) end
  for _, value in ipairs(max_event_times.of(members)) do event_time = highest(value or nil, event_time) end
  return watermark, event_time
end

-- Remove known members of a query, in any state. Note their highest values in the progress of the command, for
-- lower_maxima().
local function forget(progress, query, members)
  if #members == 0 then return end
  progress.removed_watermark, progress.removed_event_time =
    highest_of(members, progress.removed_watermark, progress.removed_event_time)
  observation.remove_substreams(query, members)
  for _, class in ipairs(ROW_CLASSES) do bulk.hdel(key.rows, row_fields(class, members)) end
end

-- Let the maxima of the job be those of the remaining members, so that the removed ones never move it again. This is a
-- phase (see steps.lua).
local function lower_maxima(progress)
  local watermark, event_time = progress.removed_watermark, progress.removed_event_time
  local is_highest = watermark and not above(job.max_watermark, watermark)
  local is_latest = event_time and event_time == job.max_event_time
  if is_highest or is_latest then
    local sets = followers.sets()
    sets[#sets + 1], sets[#sets + 2] = key.active, key.frozen
    local remain = steps.each(progress, sets, function(members)
      progress.left_watermark, progress.left_event_time = highest_of(members, progress.left_watermark, progress.left_event_time)
    end)
    if remain then return true end
  end
  if is_latest then job.max_event_time = progress.left_event_time end
  if is_highest then
    if above(job.max_watermark, progress.left_watermark) then job.max_watermark = progress.left_watermark end
    local latest = highest(job.max_watermark, job.coalesced_watermark)
    if above(job.merged_highest, latest) then job.merged_highest = latest end
  end
  -- A cell up to this watermark may be of a removed substream. Without the cell, retention acts later.
  for i, cell in ipairs(watermark and job.retention and job.retention.cells or {}) do
    if cell and cell <= watermark then job.retention.cells[i] = false end
  end
end

-- Evict: remove substreams; ignore unknown substreams.
function commands.evict()
  return steps.run({
    function(progress)
      reply.load()
      progress.evicted, progress.lost = history.summary(), frames.removed()
    end,
    steps.each_piece(function(progress, piece)
      local known = membership.split(piece.members)
      frames.add_removed(progress.lost, known)
      forget(progress, args.query, known)
      history.add(progress.evicted, known)
    end),
    lower_maxima,
    function(progress)
      frames.lose_removed(progress.lost, 'evict')
      return finish_action('evict', progress.evicted, true)
    end,
  })
end

-- Retire: end a query. Abandon its open batch, and move its substreams to a successor or evict them. A query that is its own
-- successor keeps its substreams and may begin on another checkpoint.
-- args   query, successor (absent: evict)
-- errors query_not_found

local function move_fields(name_, from, to)
  local moved = {}
  for i, value in ipairs(bulk.hmget(name_, from)) do
    if value then moved[#moved + 1], moved[#moved + 2] = to[i], value end
  end
  bulk.hset(name_, moved)
  bulk.hdel(name_, from)
end

-- Move substreams with their states to the successor; their silence starts now.
local function hand_over(from, to)
  local name, successor = args.query, args.successor
  local now = queries.observed_time(successor)
  redis.call('SADD', key.query_names, successor)
  observation.remove_placeholder(successor)
  local sets = {key.max_event_times, key.active, key.frozen, key.forced_idle, key.since, key.constant, key.advancing,
    key.next_change, key.idle_constant, key.idle_advancing, key.idle_lagged}
  for _, limit in ipairs(constants.POLICY_LIMITS) do sets[#sets + 1] = key.lagged(limit) end
  for _, set in ipairs(sets) do bulk.zmove(set, set, from, to) end
  bulk.zmove(key.done, key.done, from, to, now)
  bulk.zmove(key.last_events(name), key.last_events(successor), from, to, now)
  bulk.zmove(key.idle(name), key.idle(successor), from, to, now)
  for _, hash in ipairs({key.clock_driven, key.delays, key.learned_lags}) do move_fields(hash, from, to) end
  for _, class in ipairs(ROW_CLASSES) do  -- add the counters of members to those under other names
    local fields, new_fields = row_fields(class, from), row_fields(class, to)
    for i, rows in ipairs(bulk.hmget(key.rows, fields)) do
      if rows then bulk.add(key.rows, new_fields[i], rows) end
    end
    bulk.hdel(key.rows, fields)
  end
  queries.get(successor).proven = nil  -- it has proven nothing about the input of these members
  emission.place_awaited(successor)
end

-- Move members to the successor, unless it has substreams with their names; evict the others. Return their number.
local function remove(progress, members)
  local left = members
  if args.successor then
    local names, from, to = {}, {}, {}
    left = {}
    for i, member in ipairs(members) do names[i] = args.successor .. '/' .. policy.name_of(member) end
    for i, is_taken in ipairs(membership.known(names)) do
      if is_taken then left[#left + 1] = members[i] else from[#from + 1], to[#to + 1] = members[i], names[i] end
    end
    if #from > 0 then hand_over(from, to) end
  end
  frames.add_removed(progress.lost, left)
  forget(progress, args.query, members)
  history.add(progress.removed, members)
  return #members
end

-- Return the members of a list that belong to a query.
local function of_query(query, members)
  local own, prefix = {}, query .. '/'
  for _, member in ipairs(members) do
    if string.sub(member, 1, #prefix) == prefix then own[#own + 1] = member end
  end
  return own
end

function commands.retire()
  local name, successor = args.query, args.successor
  return steps.run({
    function(progress)
      clock.read()
      progress.removed = history.summary()
    end,
    function(progress)  -- a query may have done substreams only
      return steps.each(progress, {key.done}, function(members)
        progress.has_done = progress.has_done or #of_query(name, members) > 0
      end)
    end,
    function(progress)
      clock.advance(clock.now())
      reply.remember()
      local query, is_missing = queries.get(name), redis.call('SISMEMBER', key.missing_queries, name) == 1
      local is_empty = not progress.has_done and not is_missing
        and redis.call('EXISTS', key.last_events(name), key.idle(name)) == 0
      if is_empty and not emission.is_expected(name) and not query.run_id then values.refuse('query_not_found', {query = name}) end
      if is_empty and query.retired then return reply.finish({applied = false}) end
      if successor == name then
        local applied = query.open
        if applied then
          batches.give_up(query, 'hand_over')
          history.write_action('hand_over', name, nil, 'successor', successor)
        end
        evaluate.evaluate(true)
        return reply.finish({applied = applied})
      end
      if not query.run_id then  -- the query has made no call: store it as retired
        redis.call('ZADD', key.queries, 'NX', job.now, name)
        redis.call('SADD', key.query_names, name)
        query.query_id, query.run_id, query.last_contact = '', '', job.now
      end
      progress.lost = frames.removed()
      batches.give_up(query, successor and 'hand_over' or 'retire')
      if is_missing then frames.add_removed(progress.lost, {name .. '/'}) end
      redis.call('ZREM', key.last_seen, name)
      observation.remove_placeholder(name)
    end,
    function(progress)
      return steps.each(progress, {key.last_events(name), key.idle(name)}, function(members)
        return remove(progress, members)
      end)
    end,
    function(progress)
      return steps.each(progress, {key.done}, function(members) return remove(progress, of_query(name, members)) end)
    end,
    lower_maxima,
    function(progress)
      frames.lose_removed(progress.lost, successor and 'hand_over' or 'retire')
      history.write_action(successor and 'hand_over' or 'retire', name, progress.removed, 'successor', successor)
      evaluate.evaluate(true)
      return reply.finish({applied = true})
    end,
  })
end

-- Hold: keep C, and therefore W, at or below a value. A repeated hold expires at the later of the two times.
-- args   hold, at_most, duration_ms (absent: until the hold is released)
-- errors job_complete, hold_exists
function commands.hold()
  local hold, duration = args.hold, args.duration_ms
  reply.load()
  assert(not state.changes.is_plain)
  if job.is_complete then values.refuse('job_complete') end
  local present = number(redis.call('ZSCORE', key.holds, hold))
  local expires = number(redis.call('ZSCORE', key.hold_expiry, hold))
  local in_force = present and (not expires or expires > job.observed_now)
  if in_force and present ~= args.at_most then values.refuse('hold_exists', {hold = hold, at_most = present}) end
  if in_force and not (expires and (not duration or job.observed_now + duration > expires)) then
    return reply.finish({applied = false})
  end
  if present and not in_force then job.evaluation_due = 1 end  -- the expired hold no longer limits C
  holds.remove(hold)
  redis.call('ZADD', key.holds, args.at_most, hold)
  if duration then redis.call('ZADD', key.hold_expiry, job.observed_now + duration, hold) end
  redis.call('HSET', key.hold_reasons, hold, args.reason)
  history.write_action('hold', nil, nil, 'hold', hold, 'at_most', args.at_most)
  return reply.finish({applied = true})
end

-- Release: end a hold before it expires.
-- args   hold
-- errors hold_not_found
function commands.release()
  reply.load()
  if not redis.call('ZSCORE', key.holds, args.hold) then values.refuse('hold_not_found', {hold = args.hold}) end
  holds.remove(args.hold)
  history.write_action('release', nil, nil, 'hold', args.hold)
  evaluate.evaluate()
  return reply.finish()
end

-- Complete: end the input of a job: all substreams become done. Regardless of the throttle, C moves to the end of the last
-- frame that has events or begins before up_to: a frame of the throttle, or one that the job declares. If the job is already complete, C moves only if up_to is above C.
-- args   up_to (absent: up to the last event)
-- errors batch_open, hold_active
function commands.complete()
  local up_to = args.up_to
  reply.load()
  if job.is_complete and not (up_to and above(up_to, job.coalesced_watermark)) then return reply.finish({applied = false}) end
  local open = redis.call('ZRANGE', key.open_batches, 0, -1)
  if #open > 0 then
    table.sort(open, values.sorts_before)
    values.refuse('batch_open', {query = open[1], batch_id = queries.get(open[1]).latest})
  end
  for _, hold in ipairs(redis.call('ZRANGE', key.holds, 0, -1)) do
    local expires = number(redis.call('ZSCORE', key.hold_expiry, hold))
    if not expires or expires > job.observed_now then
      values.refuse('hold_active', {hold = hold, at_most = tonumber(redis.call('ZSCORE', key.holds, hold))})
    end
  end
  emission.advance(throttle.candidate(job.max_watermark))
  local last = job.max_event_time
  if up_to and above(up_to - 1, last) then last = math.max(up_to - 1, -values.HIGHEST) end
  if last then emission.advance(throttle.end_after(last)) end
  if last and config.frames then emission.advance(calendar.start_of(calendar.number_of(last) + 1)) end
  emission.raise_watermark(job.coalesced_watermark)
  if not job.is_complete then job.is_complete, job.completed = 1, job.observed_now end
  history.write_action('complete', nil, nil, 'up_to', up_to)
  return reply.finish({applied = true})
end

-- Reopen: accept input again in a complete job. The watermark does not go back.
function commands.reopen()
  reply.load()
  if not job.is_complete then return reply.finish({applied = false}) end
  -- The job refused reports while it was complete, so this time does not count as silence.
  job.unattended = job.unattended + (job.observed_now - job.completed)
  job.is_complete, job.observed_now = nil, job.completed
  history.write_action('reopen')
  -- While the job was complete, idle clocks may have advanced, but no substream became idle.
  local has_left = idleness.time_out_queries()
  for _, query in ipairs(redis.call('SMEMBERS', key.query_names)) do
    has_left = idleness.time_out_substreams(query, queries.get(query).idle_clock) or has_left
  end
  evaluate.evaluate(has_left)
  return reply.finish({applied = true})
end
