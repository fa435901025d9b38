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

local evaluated = state.job.evaluated or 0
local sets, frozen = emission.active_sets(), {{key.frozen, 0}, {key.idle_constant, 0}, {key.idle_advancing, evaluated}}
local low, high = range_of(sets)
if not low or membership.count() <= args.more_than then return emission.watermark_state() end
local _, highest_frozen = range_of(frozen)
high = math.max(high, highest_frozen or high)
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
