-- @include substreams
-- @include calendar
-- Limits that let C pass substreams that count, as in tidegate.domain.limits, and the order of those substreams. Each group of
-- substreams is part of sorted sets, so that the median and the slowest ones cost O(log n).
local number, text, highest = values.number, values.text, values.highest
local config, job = state.config, state.job
local limits = {}

-- The order of the substreams that count, slowest first

-- Add members of a set, as ZRANGE returns them with their scores, to rows: the members and their watermarks (-inf: none).
local function add_rows(rows, set, found)
  for i = 1, #found, 2 do
    local value = number(found[i + 1])
    rows[#rows + 1] = {member = found[i], watermark = value and math.min(value + set[2], values.HIGHEST) or -math.huge}
  end
  return rows
end

-- Return the rank of the first member after a score (nil: -inf) and a member, in the order of a sorted set.
local function rank_after(name, score, member)
  local bound = score and text(score) or '-inf'
  local first, last = redis.call('ZCOUNT', name, '-inf', '(' .. bound), redis.call('ZCOUNT', name, '-inf', bound)
  while first < last do
    local middle = math.floor((first + last) / 2)
    local found = redis.call('ZRANGE', name, middle, middle)[1]
    if found == member or values.sorts_before(found, member) then first = middle + 1 else last = middle end
  end
  return first
end

-- Return the first members of each set with their watermarks (-inf: none), slowest first. after: a member and its
-- watermark, to return only later members; nil: from the start.
function limits.slowest_first(sets, most, after)
  local rows = {}
  for _, set in ipairs(sets) do
    local score = after and after.watermark and after.watermark - set[2]
    local first = after and rank_after(set[1], score, after.member) or 0
    add_rows(rows, set, redis.call('ZRANGE', set[1], first, first + most - 1, 'WITHSCORES'))
  end
  table.sort(rows, limits.is_slower)
  return rows
end

-- Return whether one member comes before another, slowest first.
function limits.is_slower(a, b)
  if a.watermark ~= b.watermark then return a.watermark < b.watermark end
  return values.sorts_before(a.member, b.member)
end

-- The median, and the substreams far behind it

-- Return the watermark at a rank (0: the lowest) of a set; -inf: the member has none.
local function score_at(set, rank)
  return add_rows({}, set, redis.call('ZRANGE', set[1], rank, rank, 'WITHSCORES'))[1].watermark
end

-- The same of some sets together.
local function at_rank(sets, rank)
  local first, left = {}, {}
  for i, set in ipairs(sets) do first[i], left[i] = 0, redis.call('ZCARD', set[1]) end
  while true do
    local open = {}
    for i in ipairs(sets) do
      if left[i] > 0 then open[#open + 1] = i end
    end
    if #open == 1 then return score_at(sets[open[1]], first[open[1]] + rank) end
    -- At most rank members are below the lowest of these, so those up to it can be left out.
    local step, lowest, from, taken = math.max(1, math.floor((rank + 1) / #open)), math.huge, nil, nil
    for _, i in ipairs(open) do
      local most = math.min(step, left[i])
      local value = score_at(sets[i], first[i] + most - 1)
      if not from or value < lowest then lowest, from, taken = value, i, most end
    end
    if rank == 0 then return lowest end
    first[from], left[from], rank = first[from] + taken, left[from] - taken, rank - taken
  end
end

-- Return the median watermark of the members that count; nil if it is that of one without a watermark. without: ranks of
-- members that are ignored, ascending (absent: none).
function limits.median(without)
  local total = membership.number_counting() - (without and #without or 0)
  if total <= 0 then return nil end
  local rank = math.floor((total - 1) / 2)
  for _, ignored in ipairs(without or {}) do
    if ignored <= rank then rank = rank + 1 end
  end
  local sets = membership.counting_sets()
  local median = #sets > 1 and at_rank(sets, rank) or score_at(sets[1], rank)
  return median > -math.huge and median or nil
end

-- Return the lowest watermark of a substream that is not skewed; nil if none is. without: see median(). An evaluation keeps
-- the bound for the rest of its command.
function limits.skew_bound(without)
  local kept = state.changes.skew_bound
  if not without and kept ~= nil then return kept or nil end
  local median = config.max_skew_ms and limits.median(without)
  return median and values.minus(median, config.max_skew_ms) or nil
end

-- Return whether a member that counts is skewed under a bound.
function limits.is_skewed(member, bound)
  for _, set in ipairs(membership.counting_sets()) do
    local value = number(redis.call('ZSCORE', set[1], member))
    if value then return value + set[2] < bound end
  end
  return false
end

-- Return the first and the last score of a set in a range of watermarks. A range has first (absent: from those that have
-- none; -inf: from the lowest) and below (absent: only those that have none).
local function scores_of(set, range)
  local first = not range.first and '-inf' or range.first == -math.huge and '(-inf' or text(range.first - set[2])
  return first, range.below and '(' .. text(range.below - set[2]) or '-inf'
end

-- Rows that seldom arrive. job.arrivals has the fields of tidegate.domain.job.Arrivals, except the sketch. job.proven is what
-- proven_until() returned at the last evaluation.

-- Return the arrival delay in force: the learned one, or the highest one if the job has not learned it yet; nil without a target.
local function arrival_delay()
  if not config.arrival_target then return nil end
  local learned = job.arrivals and job.arrivals.learned
  return learned and policy.within(config.arrivals, learned) or config.arrivals.initial_lag
end

-- Learn the arrival delay from the measured rows in a sketch, if there is a target and they suffice. steps: see moved_lag().
local function move_delay(s, steps)
  local of = job.arrivals
  -- Until then, a row with the highest delay cannot have arrived.
  if not config.arrival_target or of.last_end - of.first_end < config.max_arrival_delay_ms then return end
  local wanted = target_completeness.wanted_lag(config.arrivals, s, s)
  if wanted then of.learned = target_completeness.moved_lag(of.learned and arrival_delay(), wanted, steps) end
end

-- Follow a new configuration. before: the configuration before (nil: the job starts again).
function limits.start_learning(before)
  local of = job.arrivals
  if not (config.arrivals and before and before.arrivals and before.frames.declared == config.frames.declared
    and config.max_arrival_delay_ms <= before.max_arrival_delay_ms) then
    job.arrivals = nil
    redis.call('HDEL', key.delays, 'arrivals')
  elseif of and (policy.differs(before.arrivals, config.arrivals) or before.arrival_target ~= config.arrival_target) then
    of.rows, of.late, of.learned = 0, 0, nil
    if of.last_end then move_delay(sketch.unpack(redis.call('HGET', key.delays, 'arrivals')), 0) end
  end
end

-- Add the arrival delays of the rows of a batch to the progress of its commit. proven: the begun_proven of its query. rows: see
-- frames.count_rows.
function limits.measure_arrivals(progress, proven, rows)
  local of, limit_ms = progress.arrivals or {recent = {}, rows = 0, late = 0, too_old = 0}, arrival_delay()
  progress.arrivals = of
  local has_begun = job.arrivals and job.arrivals.rows > 0
  for _, row in ipairs(rows) do
    local count, finish = tonumber(row.rows), calendar.start_of(calendar.number_of(row.time) + 1)
    -- At the delay after its end, a frame is complete, so a row that arrives then is late.
    local delay = proven - finish + 1
    local is_old = delay > config.max_arrival_delay_ms
    if count > 0 and row.time <= job.now and (has_begun or not is_old) then
      of.rows, of.late = of.rows + count, of.late + (limit_ms and delay > limit_ms and count or 0)
      if is_old then
        of.too_old = of.too_old + count * constants.ROW
      else
        local bucket = sketch.bucket_of(delay)
        of.recent[bucket] = (of.recent[bucket] or 0) + count
        of.last_end = math.max(finish, of.last_end or finish)
      end
    end
  end
end

-- Learn from the rows that measure_arrivals() has added to the progress of a commit.
function limits.learn_arrivals(progress)
  local of, before = progress.arrivals, job.arrivals or {rows = 0, late = 0, too_old = 0}
  if not of or of.rows == 0 then return end
  before.rows, before.late = before.rows + of.rows, before.late + of.late
  job.arrivals = before
  if not of.last_end then
    before.too_old = before.too_old + of.too_old
    return
  end
  before.first_end, before.last_end = before.first_end or of.last_end, highest(of.last_end, before.last_end)
  local s = sketch.unpack(redis.call('HGET', key.delays, 'arrivals'))
  local buckets, weights = s.buckets, s.weights
  local decayed = sketch.decay_to(s, before.last_end)
  -- A high target needs more rows than a half-life may have.
  if sketch.weight(s) < config.arrivals.window * constants.ROW then
    s.buckets, s.weights = buckets, weights
  else
    before.too_old = sketch.decayed(before.too_old, decayed)
  end
  before.too_old = before.too_old + of.too_old
  sketch.add(s, of.recent)
  redis.call('HSET', key.delays, 'arrivals', sketch.pack(s))
  move_delay(s, decayed)
end

-- Return the processing time up to which the queries have read all input; nil if one of them proves nothing. removed: numbers
-- of members that are ignored, by query (absent: none).
function limits.proven_until(removed)
  if redis.call('ZCARD', key.last_events('')) > (removed and removed[''] or 0) then return nil end
  local lowest
  for _, name in ipairs(redis.call('SMEMBERS', key.query_names)) do
    if redis.call('ZCARD', key.last_events(name)) > (removed and removed[name] or 0) then
      local proven = queries.get(name).proven
      if not proven then return nil end
      lowest = math.min(lowest or proven, proven)
    end
  end
  return lowest
end

-- Return the event time below which C waits for no substream, as of the last evaluation; nil if it waits for all. removed: see
-- proven_until() (absent: none).
function limits.arrival_bound(removed)
  if not config.arrival_target then return nil end
  local last, proven = job.arrivals and job.arrivals.last_end, job.proven
  if removed then proven = limits.proven_until(removed) end
  if not proven or not last then return nil end
  -- If all substreams are silent, the source may be down, and deliver later what it has.
  local reached = math.min(proven, last + config.max_arrival_delay_ms, values.HIGHEST)
  return values.minus(reached, arrival_delay())
end

-- Return what a status has of arrival_target; nil without it.
function limits.arrivals()
  if not config.arrival_target then return nil end
  local of = job.arrivals or {rows = 0, late = 0}
  return {map = {target = string.format('%.17g', config.arrival_target), delay_ms = arrival_delay(),
    is_learned = job.arrivals and job.arrivals.learned and true or false,
    proven_ms = job.proven, bound = limits.arrival_bound(), rows = of.rows, late = of.late}}
end

-- All limits

-- Return the members that count and that C may pass, by limit. others: what lets C pass those that are not skewed (false:
-- nothing).
function limits.passed(others)
  local found, sets, bound = {}, membership.counting_sets(), limits.skew_bound()
  if others then found[1] = {limit = others, sets = sets, bound = bound} end
  if bound then found[#found + 1] = {limit = 'max_skew_ms', sets = sets, bound = bound, is_skewed = true} end
  for _, limit in ipairs(config.has_followers and constants.POLICY_LIMITS or {}) do
    found[#found + 1] = {limit = limit, sets = {{key.lagged(limit), 0}}}
  end
  return found
end

-- Return the ranges of the watermarks of a group of limits.passed() below a watermark.
local function ranges_of(group, watermark)
  if group.is_skewed then return {{first = -math.huge, below = math.min(group.bound, watermark)}} end
  return group.bound and {{}, {first = group.bound, below = watermark}} or {{below = watermark}}
end

-- Return the first members in some ranges, slowest first, with their watermarks (-inf: none).
local function first_in(sets, ranges, most)
  local rows = {}
  for _, set in ipairs(sets) do
    for _, range in ipairs(ranges) do
      local first, last = scores_of(set, range)
      add_rows(rows, set, redis.call('ZRANGE', set[1], first, last, 'BYSCORE', 'LIMIT', 0, most, 'WITHSCORES'))
    end
  end
  table.sort(rows, limits.is_slower)
  for i = most + 1, #rows do rows[i] = nil end
  return rows
end

-- Return the number of members of such a group below a watermark, and the first constants.NAMES_KEPT ones.
function limits.below(group, watermark)
  local count = 0
  for _, set in ipairs(group.sets) do
    for _, range in ipairs(ranges_of(group, watermark)) do count = count + redis.call('ZCOUNT', set[1], scores_of(set, range)) end
  end
  return count, count > 0 and first_in(group.sets, ranges_of(group, watermark), constants.NAMES_KEPT) or {}
end

-- Return a rank of a watermark among the members that count. ranks: those that others with this watermark may have.
local function rank_of(watermark, ranks)
  local rank = 0
  for _, set in ipairs(watermark > -math.huge and membership.counting_sets() or {}) do
    rank = rank + redis.call('ZCOUNT', set[1], '-inf', '(' .. text(watermark - set[2]))
  end
  for _, taken in ipairs(ranks) do
    if taken == rank then rank = rank + 1 end
  end
  return rank
end

-- Return, with max_skew_ms or arrival_target, the bounds (skew_bound, arrival_bound; '': none) without the first 0, 1, …
-- holders, and the first holders, slowest first. Each holder that is left out changes the median, and may change which members
-- are skewed and up to when the queries have read all input.
function limits.first_holders(most)
  if not config.max_skew_ms and not config.arrival_target then
    return nil, limits.slowest_first(membership.counting_sets(), most)
  end
  local bounds, holders, ranks, is_listed, of_queries = {}, {}, {}, {}, {}
  for removed = 0, most do
    local bound, holder = limits.skew_bound(ranks), nil
    bounds[#bounds + 1] = {bound or '', limits.arrival_bound(of_queries) or ''}
    for _, row in ipairs(limits.slowest_within(bound, removed + 1)) do
      if not is_listed[row.member] then holder = holder or row end
    end
    if not holder then break end
    holders[#holders + 1], is_listed[holder.member] = holder, true
    local query = policy.query_of(holder.member)
    of_queries[query] = (of_queries[query] or 0) + 1
    ranks[#ranks + 1] = rank_of(holder.watermark, ranks)
    table.sort(ranks)
  end
  return bounds, holders
end

-- Return the number of skewed members.
function limits.number_skewed()
  local bound = limits.skew_bound()
  return bound and limits.below({sets = membership.counting_sets(), bound = bound, is_skewed = true}, bound) or 0
end

-- Return a list of the members that count, and that C passes now, by limit: limit, limit_ms, bound, count, and the first ones
-- with their watermarks ('': none).
function limits.passed_now()
  if job.is_complete then return {} end
  local found, bounds = {}, {max_skew_ms = limits.skew_bound(), arrival_target = limits.arrival_bound()}
  for _, group in ipairs(limits.passed('arrival_target')) do
    local bound = bounds[group.limit]
    local count, rows = 0, {}
    if bound then count, rows = limits.below(group, bound) end
    if count > 0 then
      local members, watermarks = {}, {}
      for i, row in ipairs(rows) do
        members[i], watermarks[i] = row.member, row.watermark > -math.huge and row.watermark or ''
      end
      found[#found + 1] = {map = {limit = group.limit, bound = bound, count = count, members = members,
        watermarks = watermarks, limit_ms = group.limit == 'max_skew_ms' and config.max_skew_ms or arrival_delay()}}
    end
  end
  table.sort(found, function(a, b) return a.map.limit > b.map.limit end)
  return found
end

-- Return the lowest watermark of the members that are not skewed. of_all: that of all members; each has a watermark. cap:
-- bound of those that follow the clock. The rest of the command uses the bound and the slowest member.
function limits.lowest_within(of_all, cap)
  -- Without caps, the max watermark is at least the median.
  local is_near = not config.has_followers and job.max_watermark and job.max_watermark - of_all <= config.max_skew_ms
  local bound = not is_near and limits.skew_bound() or nil
  state.changes.skew_bound = bound or false
  if not bound then return of_all end
  local lowest, slowest = math.huge, nil
  for i, set in ipairs(membership.counting_sets()) do
    local first = scores_of(set, {first = bound})
    local found = redis.call('ZRANGE', set[1], first, '+inf', 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')
    if found[1] then
      local row = {member = found[1], watermark = math.min(tonumber(found[2]) + set[2], values.HIGHEST)}
      lowest = math.min(lowest, i > 1 and math.min(row.watermark, cap) or row.watermark)
      if not slowest or limits.is_slower(row, slowest) then slowest = row end
    end
  end
  state.changes.slowest = slowest
  return math.max(lowest, of_all)
end

-- Return the substream that holds C, and its watermark at the last evaluation: it counts, is not skewed, and has the lowest
-- watermark; nil if none holds C, or the lowest watermark is below the arrival bound.
function limits.slowest()
  local first, bound = state.changes.slowest or limits.slowest_within(limits.skew_bound(), 1)[1], limits.arrival_bound()
  if not first or bound and first.watermark < bound then return nil end
  return first.member, first.watermark > -math.huge and first.watermark or nil
end

-- Return the first members that are not skewed under a bound, as in slowest_first().
function limits.slowest_within(bound, most, after)
  local rows, kept = limits.slowest_first(membership.counting_sets(), most, after), {}
  for _, row in ipairs(rows) do
    if not bound or row.watermark >= bound or row.watermark == -math.huge then kept[#kept + 1] = row end
  end
  if #kept == #rows then return kept end
  -- The skewed members come after those without a watermark, and before all others.
  while kept[1] and kept[#kept].watermark > -math.huge do kept[#kept] = nil end
  for _, row in ipairs(first_in(membership.counting_sets(), {{first = bound, below = math.huge}}, most)) do
    kept[#kept + 1] = row
  end
  return kept
end

-- Return what the job would do now under a limit on skew: coalesced_watermark, passed (as in passed_now; absent: none), and
-- the rows of those members. candidate(): the watermark to which C may rise for a minimum.
function limits.what_if_skew(limit_ms, candidate)
  local changes, kept, found = state.changes, {config.max_skew_ms, state.changes.skew_bound, state.changes.slowest}, {}
  state.forget_config()  -- in case the server ends the function before the configuration is as it was
  config.max_skew_ms, changes.skew_bound, changes.slowest = limit_ms, nil, nil
  local first = limits.slowest_within(limits.skew_bound(), 1)[1]
  local lowest = first and first.watermark > -math.huge and first.watermark or nil
  found.coalesced_watermark = highest(candidate(first and highest(lowest, limits.arrival_bound())), job.coalesced_watermark)
  for _, passed in ipairs(limits.passed_now()) do
    if passed.map.limit == 'max_skew_ms' then found.passed = passed end
  end
  found.rows = 0
  for _, member in ipairs(found.passed and found.passed.map.members or {}) do
    for _, rows in ipairs(redis.call('HMGET', key.rows, 'on_time ' .. member, 'updated ' .. member, 'late ' .. member)) do
      found.rows = found.rows + (tonumber(rows or nil) or 0)
    end
  end
  config.max_skew_ms, changes.skew_bound, changes.slowest = kept[1], kept[2], kept[3]
  return {map = found}
end

return limits
