-- @include evaluate
-- @include steps
-- What a report does to substreams, as in tidegate.domain.observe: event times, watermarks and delays. The evaluation
-- afterwards moves the job. Each column of a report has one entry per member: a number or false.
local number, score, highest, minus = values.number, values.score, values.highest, values.minus
local job, config = state.job, state.config
local observation, delays = {}, {}

-- Checks

local function accepts_watermarks(member) return policy.of(member).accepts_watermarks end

-- Return the members with a watermark but no event time whose policies do not accept watermarks.
local function without_event_time(members, event_times, watermarks)
  local missing = {}
  if not next(watermarks) then return missing end
  for i, member in ipairs(members) do
    if not number(event_times[i]) and number(watermarks[i]) and not accepts_watermarks(member) then
      missing[#missing + 1] = member
    end
  end
  return missing
end

-- Store in the progress of a command for how many new members the job has room, unless `count` members fit in any case.
-- Members that open batches will add count, too; placeholders do not count.
function observation.look_for_room(progress, count)
  local capacity = args.max_substreams
  if not capacity then return end
  local size = membership.count()
  local open = state.changes.is_plain and {} or redis.call('ZRANGE', key.open_batches, 0, -1)
  for _, query in ipairs(open) do size = size + redis.call('SCARD', key.coming(query)) end
  if size + count > capacity then progress.room = capacity - size + redis.call('SCARD', key.missing_queries) end
end

-- Count the members of a query that are new. refuse_if_full() refuses the command if the job has no room for them.
function observation.count_new(progress, query, members)
  if not progress.room then return end
  local known, coming = membership.known(members), bulk.smismember(key.coming(query), members)
  for i = 1, #members do
    if not known[i] and coming[i] == 0 then
      progress.room = progress.room - 1
      progress.is_full = progress.room < 0
    end
  end
end

function observation.refuse_if_full(progress)
  if progress.is_full then values.refuse('too_many_substreams', {limit = args.max_substreams}) end
end

-- Values too far ahead of the clock

-- Return a table in which members that the job has are true. Later steps of a command must not remove members.
function observation.known(members)
  local known, new = state.changes.known, {}
  for _, member in ipairs(members) do
    if not known[member] then new[#new + 1] = member end
  end
  for i, is_known in ipairs(membership.known(new)) do known[new[i]] = is_known end
  return known
end

-- Return the latest event time that is accepted; nil if max_future_skew_ms is off.
function observation.latest_event_time()
  if config.max_future_skew_ms then return math.min(job.now + config.max_future_skew_ms, values.HIGHEST) end
end

-- Add to the counters of known members only, because the number of unknown members is unbounded. A member occurs once.
function observation.count_rows(class, members, rows)
  local known, fields, amounts, n = observation.known(members), {}, {}, 0
  for i, member in ipairs(members) do
    if known[member] then
      n = n + 1
      fields[n], amounts[n] = class .. ' ' .. member, rows[i]
    end
  end
  bulk.add_each(key.rows, fields, amounts)
end

function observation.count_future(members, rows)
  observation.count_rows('future_rows', members, rows)
  for _, count in ipairs(rows) do bulk.add(key.job, 'future_rows', count) end
end

-- Return the columns of a report without the entries too far ahead of the clock, and the members of those entries.
local function split_future(report)
  local latest, future = observation.latest_event_time(), {}
  local event_times, watermarks, min_event_times = report.max_event_times, report.watermarks, report.min_event_times
  if not latest then return report, future end
  local kept = {members = {}, max_event_times = {}, watermarks = {}, min_event_times = {}}
  for i, member in ipairs(report.members) do
    if (number(event_times[i]) or latest) > latest or (number(watermarks[i]) or latest) > latest then
      future[#future + 1] = member
    else
      local at = #kept.members + 1
      kept.members[at], kept.max_event_times[at], kept.watermarks[at] = member, event_times[i], watermarks[i]
      kept.min_event_times[at] = min_event_times and min_event_times[i]
    end
  end
  return #future == 0 and report or kept, future
end

-- Return the members of a report (members, max_event_times, watermarks) whose event times are missing, and remember in the
-- progress of the command which members have entries too far ahead of the clock.
function observation.check(progress, report)
  local _, future = split_future(report)
  if #future > 0 then
    progress.future = progress.future or history.summary()
    history.add(progress.future, future)
  end
  return without_event_time(report.members, report.max_event_times, report.watermarks)
end

-- Check the members of a report that has its own members. Return whether pieces remain.
function observation.check_members(progress, query)
  return steps.check(progress, function(piece)
    observation.count_new(progress, query, piece.members)
    return observation.check(progress, piece)
  end, function(missing)
    values.refuse('event_time_missing', {substreams = missing})
  end)
end

-- Count and remove entries too far ahead of the clock; return the remaining columns.
function observation.set_aside_future(report)
  local kept, future = split_future(report)
  if #future == 0 then return kept end
  local ones = {}
  for i = 1, #future do ones[i] = 1 end
  observation.count_future(future, ones)
  return kept
end

-- Event times and watermarks

-- Remove the placeholder of a query that now has a substream.
function observation.remove_placeholder(query)
  if redis.call('SREM', key.missing_queries, query) == 0 then return end
  local names = {key.active, key.frozen, key.forced_idle, key.last_events(query), key.idle(query)}
  for _, name in ipairs(names) do redis.call('ZREM', name, query .. '/') end
end

-- Add substreams without events.
function observation.add_substreams(query, members, observed)
  if query ~= '' then
    redis.call('SADD', key.query_names, query)
    observation.remove_placeholder(query)
  end
  bulk.srem(key.coming(query), members)
  local flat, follower_members = policy.by_kind(members)
  bulk.zadd_all(key.last_events(query), observed, members)
  bulk.zadd_all(key.active, '-inf', flat)
  for _, member in ipairs(follower_members) do followers.observe(member) end
  emission.place_awaited(query)
end

-- Remove known substreams of a query, in any state.
function observation.remove_substreams(query, members)
  for _, name in ipairs({key.max_event_times, key.active, key.frozen, key.done, key.forced_idle, key.since,
    key.last_events(query), key.idle(query)}) do
    bulk.zrem(name, members)
  end
  followers.remove(members)
  for _, name in ipairs({key.clock_driven, key.delays, key.learned_lags}) do bulk.hdel(name, members) end
  emission.place_awaited(query)
end

-- Let known substreams start again without events. Return those that were not as new ones are.
function observation.restart_substreams(query, members)
  local known, again = membership.split(members), {}
  local active = bulk.zmscore(key.last_events(query), known)
  local times, watermarks = max_event_times.of(known), membership.watermarks(known)
  for i, member in ipairs(known) do
    if not active[i] or times[i] or watermarks[i] then again[#again + 1] = member end
  end
  if #again == 0 then return again end
  observation.remove_substreams(query, again)
  observation.add_substreams(query, again, (queries.observed_time(query)))
  return again
end

-- End known substreams, so that they never hold the watermark again. Return those that were not done.
function observation.end_substreams(query, members)
  assert(not state.changes.is_plain)
  local _, new = bulk.split_by_set(key.done, (membership.split(members)))
  local active, idle = bulk.split_by_set(key.last_events(query), new)
  bulk.zadd_each(key.done, bulk.zmscore(key.last_events(query), active), active)
  bulk.zadd_each(key.done, bulk.zmscore(key.idle(query), idle), idle)
  idleness.freeze(active)
  idleness.freeze((bulk.split(idle, followers.idle_ones(idle))))
  bulk.zadd_all(key.since, job.now, new)
  for _, name in ipairs({key.last_events(query), key.idle(query), key.forced_idle}) do bulk.zrem(name, new) end
  bulk.hdel(key.clock_driven, new)
  emission.place_awaited(query)
  return new
end

local function has_numbers_only(column, length)
  for i = 1, length do
    if type(column[i]) ~= 'number' then return false end
  end
  return true
end

-- Return the entries that have an effect. Entries of done substreams have no effect. A watermark has an effect if the
-- policy accepts watermarks and the watermark of the substream is lower.
local function effective(members, event_times, watermarks)
  local done, active, frozen = {}, {}, {}
  if not state.changes.is_plain and redis.call('EXISTS', key.done) == 1 then done = bulk.zmscore(key.done, members) end
  if not next(watermarks) and not next(done) and has_numbers_only(event_times, #members) then
    return members, event_times, {}
  end
  if next(watermarks) then active, frozen = bulk.zmscore(key.active, members), bulk.zmscore(key.frozen, members) end
  local names, times, reported, n = {}, {}, {}, 0
  for i, member in ipairs(members) do
    if not done[i] then
      local time, watermark = number(event_times[i]), number(watermarks[i])
      if watermark and not (accepts_watermarks(member) and values.above(watermark, number(active[i] or frozen[i]))) then
        watermark = nil
      end
      if time or watermark then
        n = n + 1
        names[n], times[n], reported[n] = member, time, watermark
      end
    end
  end
  return names, times, reported
end

-- Split columns by policy. The groups have the columns names, times and watermarks.
local function by_policy(names, times, watermarks)
  if #config.policies == 1 then
    return {{rule = config.policies[1], names = names, times = times, watermarks = watermarks}}
  end
  local groups, of_rule = {}, {}
  for i, member in ipairs(names) do
    local rule = policy.of(member)
    local group = of_rule[rule]
    if not group then
      group = {rule = rule, names = {}, times = {}, watermarks = {}}
      of_rule[rule], groups[#groups + 1] = group, group
    end
    local at = #group.names + 1
    group.names[at], group.times[at], group.watermarks[at] = member, times[i], watermarks[i]
  end
  return groups
end

local function raise_max_event_times(names, times)
  local scored = {}
  for i, member in ipairs(names) do
    if times[i] then scored[#scored + 1], scored[#scored + 2] = times[i], member end
  end
  bulk.zadd(key.max_event_times, 'GT', scored)
end

local function observe_constant_lag(lag, names, times)
  local watermarks, is_out_of_range = {}, false
  for i, member in ipairs(names) do
    local watermark = times[i] - lag  -- values.minus and values.score without their calls
    if watermark < -values.HIGHEST then watermark, is_out_of_range = -math.huge, true end
    watermarks[2 * i - 1], watermarks[2 * i] = watermark, member
  end
  local exceptions, exception_times = max_event_times.exceptions(names, times, is_out_of_range)
  bulk.zadd(key.active, 'GT', watermarks)
  if #exceptions > 0 then max_event_times.store(exceptions, exception_times) end
end

local function observe_followers(names, times)
  local lines, before = bulk.hmget(key.clock_driven, names), bulk.zmscore(key.max_event_times, names)
  for i, member in ipairs(names) do followers.observe(member, lines[i], times[i], number(before[i])) end
  raise_max_event_times(names, times)
end

-- Apply event times under learned lags. A shorter lag also raises a watermark.
local function observe_targets(names, times)
  local before, lags, watermarks = bulk.zmscore(key.max_event_times, names), policy.lags_of(names), {}
  for i = 1, #names do watermarks[i] = score(minus(highest(times[i], number(before[i])), lags[i])) end
  bulk.zadd_each(key.active, watermarks, names, 'GT')
  raise_max_event_times(names, times)
end

local function observe_reported(names, times, reported)
  local watermarks = {}
  for i = 1, #names do watermarks[i] = score(reported[i]) end
  bulk.zadd_each(key.active, watermarks, names, 'GT')
  raise_max_event_times(names, times)
end

-- Record that the members that a report names are not silent, and make idle ones active. Entries with an effect are those
-- in `names`. Without one, a member stays idle if an operator made it idle. Return the members that became active.
local function keep_alive(query, named, names, observed)
  if #names == #named then return idleness.reactivate(query, names) end
  local has_effect, awake = {}, {}
  for _, member in ipairs(names) do has_effect[member] = true end
  for i, reason in ipairs(bulk.zmscore(key.forced_idle, named)) do
    if has_effect[named[i]] or not reason or tonumber(reason) == 0 then awake[#awake + 1] = named[i] end
  end
  local active = idleness.reactivate(query, awake)
  bulk.zadd_all(key.last_events(query), observed, named, 'XX')
  return active
end

-- Apply the columns of a report to the substreams of a query. observed: the observed time of the query. named: all members
-- that the report names, also those without values. Return the members whose entries had an effect, and the idle members
-- that became active.
function observation.observe(query, report, observed, named)
  local names, times, reported = effective(report.members, report.max_event_times, report.watermarks)
  local active = keep_alive(query, named or report.members, names, observed)
  if #names == 0 then return names, active end
  if query ~= '' then observation.remove_placeholder(query) end
  local latest = job.max_event_time
  for i = 1, #names do
    local time = times[i]
    if time and (not latest or time > latest) then latest = time end  -- values.highest without its call
  end
  job.max_event_time = latest
  for _, group in ipairs(by_policy(names, times, reported)) do
    local rule, lag = group.rule, policy.constant_lag(group.rule)
    if lag then
      observe_constant_lag(lag, group.names, group.times)
    elseif rule.follows_clock then
      observe_followers(group.names, group.times)
    elseif policy.is_target(rule) then
      observe_targets(group.names, group.times)
    else
      observe_reported(group.names, group.times, group.watermarks)
    end
  end
  bulk.zadd_all(key.last_events(query), observed, names)
  return names, active
end

-- Delays

-- Return the members that have rows, a max event time, and are not done; their max event times; and rows by member and
-- bucket. A member may occur several times. The columns are lists of alternating buckets and rows.
local function measured(members, columns)
  local names, rows = {}, {}
  for i, member in ipairs(members) do
    local pairs_ = columns[i]
    if #pairs_ > 0 then
      if not rows[member] then rows[member], names[#names + 1] = {}, member end
      for at = 1, #pairs_, 2 do rows[member][pairs_[at]] = (rows[member][pairs_[at]] or 0) + pairs_[at + 1] end
    end
  end
  local event_times, done, known, known_times = max_event_times.of(names), bulk.zmscore(key.done, names), {}, {}
  for i, member in ipairs(names) do
    if event_times[i] and not done[i] then known[#known + 1], known_times[#known + 1] = member, event_times[i] end
  end
  return known, known_times, rows
end

-- Return the distance of each member's watermark above the merged watermark: -1 if there is no merged watermark, false
-- if the member has no lag.
local function ahead_of(known, known_times, merged)
  local lags, ahead = policy.lags_of(known), {}
  local active, frozen = bulk.zmscore(key.active, known), bulk.zmscore(key.frozen, known)
  for i, member in ipairs(known) do
    local own = not policy.of(member).follows_clock and number(active[i] or frozen[i])
    if lags[i] and not own then own = known_times[i] - lags[i] end
    ahead[i] = lags[i] and (merged and math.max(own - merged, 0) or -1)
  end
  return ahead
end

-- Add the delays of rows to those of the job in the progress of the command. The columns have a list of members with rows,
-- and a list of buckets and rows for each. merged: C without the throttle, when the batch began or before the report.
local function pool(progress, members, columns, merged)
  if #members == 0 then return end
  local known, known_times, rows = measured(members, columns)
  if #known == 0 then return end
  local ahead = ahead_of(known, known_times, merged)
  progress.pooled, progress.behind_merged = progress.pooled or {}, progress.behind_merged or {}
  local pooled, behind_merged = progress.pooled, progress.behind_merged
  for i, member in ipairs(known) do
    for bucket, count in pairs(rows[member]) do
      pooled[bucket] = (pooled[bucket] or 0) + count
      if ahead[i] then
        local behind = bucket > 0 and ahead[i] >= 0 and sketch.bucket_of(sketch.typical(bucket) - ahead[i]) or 0
        behind_merged[behind] = (behind_merged[behind] or 0) + count
      end
    end
  end
end

local function store_pools(progress)
  for field, together in pairs({pool = progress.pooled, merged = progress.behind_merged}) do
    local s = sketch.unpack(redis.call('HGET', key.delays, field))
    sketch.decay_to(s, job.max_event_time)
    sketch.add(s, together)
    redis.call('HSET', key.delays, field, sketch.pack(s))
  end
end

-- Add the delays of rows to those of the members, and update learned lags. Return the members that discarded their lags.
local function learn(members, columns)
  local known, known_times, rows = measured(members, columns)
  local pooled, relearning = sketch.unpack(redis.call('HGET', key.delays, 'pool')), {}
  for i, member in ipairs(known) do
    local own = sketch.unpack(redis.call('HGET', key.delays, member))
    local decayed = sketch.decay_to(own, known_times[i])
    sketch.add(own, rows[member])
    if policy.is_target(policy.of(member))
      and target_completeness.learn(member, known_times[i], rows[member], own, pooled, decayed) then
      relearning[#relearning + 1] = member
    end
    redis.call('HSET', key.delays, member, sketch.pack(own))
  end
  return relearning
end

-- Return the phases (see steps.lua) that add the delays in the pieces of a command of a query. each(progress, visit) visits
-- the pieces. merged(): see pool().
function delays.phases(query, each, merged)
  return function(progress)
    local before = merged()
    local remain = each(progress, function(piece) pool(progress, piece.delayed or {}, piece.delays, before) end)
    if not remain and progress.pooled then store_pools(progress) end
    return remain
  end, function(progress)
    if not progress.pooled then return false end
    progress.relearning = progress.relearning or history.summary()
    local remain = each(progress, function(piece) history.add(progress.relearning, learn(piece.delayed, piece.delays)) end)
    if not remain then history.write_substreams('relearning', query, progress.relearning) end
    return remain
  end
end

return observation, delays
