-- Read the delays of a job.
--
-- args   members (unknown members are ignored; absent: the substream that holds the watermark)
-- reply  wait_sum, wait_weight, pool, merged (sketches), rows (member, lag in force, sketch)
-- @include parts/delays
-- @include parts/membership
local job = state.job
clock.load()
local members = args.members
if not members then
  local held_by = emission.held_by()
  members = held_by and held_by.substream and {held_by.query .. '/' .. held_by.substream} or {}
end
local known, done = membership.known(members), bulk.zmscore(key.done, members)
local sketches, lags, rows = bulk.hmget(key.delays, members), policy.lags_of(members), {}
for i, member in ipairs(members) do
  local has_ended = done[i] or job.is_complete
  if known[i] then
    rows[#rows + 1] = {map = {member = member, lag = not has_ended and lags[i] or nil, sketch = sketch.reply(sketches[i])}}
  end
end
return emission.watermark_state({wait_sum = job.wait_sum and string.format('%.17g', job.wait_sum), wait_weight = job.wait_weight,
  pool = sketch.reply(redis.call('HGET', key.delays, 'pool') or nil),
  merged = sketch.reply(redis.call('HGET', key.delays, 'merged') or nil), rows = rows})
