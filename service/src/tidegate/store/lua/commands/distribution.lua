-- Count the substreams by watermark, in bins of equal width.
--
-- args   more_than (a job with at most this number of substreams has no distribution), widths (of a bin in
--        milliseconds, ascending), max_bins
-- reply  width (absent: no distribution), start (of the first bin), active, others (columns of counts), earlier (number
--        of idle and done substreams before the first bin)
-- @include parts/emission
-- @include parts/membership
local text = values.text
clock.load()

-- Return the lowest and the highest watermark in some sets.
local function range_of(sets)
  local low, high
  for _, set in ipairs(sets) do
    local first = redis.call('ZRANGE', set[1], '(-inf', '+inf', 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')[2]
    local _, last = values.highest_of(set[1])
    if first and (not low or first + set[2] < low) then low = first + set[2] end
    if last and (not high or last + set[2] > high) then high = last + set[2] end
  end
  return low, high
end

local function width_for(span)
  for _, width in ipairs(args.widths) do
    if span < width * (args.max_bins - 1) then return width end
  end
  local width = args.widths[#args.widths]
  while span >= width * (args.max_bins - 1) do width = 2 * width end
  return width
end

local function count(sets, from, to)
  local sum = 0
  for _, set in ipairs(sets) do
    sum = sum + redis.call('ZCOUNT', set[1], text(from - set[2]), '(' .. text(to - set[2]))
  end
  return sum
end

local job = state.job
local sets = emission.active_sets()
local frozen = {{key.frozen, 0}, {key.idle_constant, 0}, {key.idle_advancing, job.evaluated or 0}}
if job.is_complete then  -- all substreams are done
  for _, set in ipairs(sets) do frozen[#frozen + 1] = set end
  sets = {}
end
local low, high = range_of(sets)
local lowest_frozen, highest_frozen = range_of(frozen)
low = low or lowest_frozen
if not low or membership.count() <= args.more_than then return emission.watermark_state() end
high = math.max(high or highest_frozen, highest_frozen or high)
local width = width_for(high - low)
local start, active, others = low - values.modulo(low, width), {}, {}
for from = start, high, width do
  active[#active + 1], others[#others + 1] = count(sets, from, from + width), count(frozen, from, from + width)
end
local earlier = 0
for _, set in ipairs(frozen) do
  earlier = earlier + redis.call('ZCOUNT', set[1], '(-inf', '(' .. text(start - set[2]))
end
return emission.watermark_state({width = width, start = start, active = active, others = others, earlier = earlier})
