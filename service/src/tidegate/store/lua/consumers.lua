-- @include reply
-- The consumers of a job's frames, as in tidegate.domain.consumers: key.consumers has a packed consumer by name, with the
-- fields owner, lease_until_ms, at_ms, start and generation (absent: nothing is delivered), and moved_ms.
local job = state.job

-- Return a consumer; nil if the job has no such consumer.
local function consumer_named(name)
  local packed = redis.call('HGET', key.consumers, name)
  return packed and cmsgpack.unpack(packed) or nil
end

local function in_reply(name, found)
  local position = found.at_ms and {map = {at_ms = found.at_ms, start = found.start, generation = found.generation}}
  return {map = {consumer = name, owner = found.owner, lease_until_ms = found.lease_until_ms, position = position or nil,
    moved_ms = found.moved_ms}}
end

local function refuse_held(name, found)
  values.refuse('consumer_held', {consumer = name, owner = found.owner, until_ms = found.lease_until_ms})
end

-- Return whether a position is before another one.
local function is_before(a, b)
  for _, name in ipairs({'at_ms', 'start', 'generation'}) do
    if a[name] ~= b[name] then return a[name] < b[name] end
  end
  return false
end

-- Consume: take or renew the lease of a consumer, and move its position.
-- args   consumer, owner, lease_ms, position (at_ms, start, generation; absent: the position does not move), release (true:
--        end the lease)
-- reply  consumer
-- errors consumer_held, consumer_taken_over, consumer_ahead, too_many_consumers
function commands.consume()
  local name, position = args.consumer, args.position
  reply.load()
  local found = consumer_named(name)
  if not found then
    local most = constants.MAX_CONSUMERS
    if redis.call('HLEN', key.consumers) >= most then values.refuse('too_many_consumers', {limit = most}) end
    found = {}
  elseif found.owner ~= args.owner then
    if found.lease_until_ms > job.now then refuse_held(name, found) end
    if position or args.release then values.refuse('consumer_taken_over', {consumer = name, owner = found.owner}) end
  end
  if position and found.at_ms and is_before(position, found) then
    values.refuse('consumer_ahead', {consumer = name, at_ms = found.at_ms, start = found.start, generation = found.generation})
  end
  found.owner = args.owner
  found.lease_until_ms = args.release and job.now or job.now + args.lease_ms
  if position and not (found.at_ms and not is_before(found, position)) then
    found.at_ms, found.start, found.generation = position.at_ms, position.start, position.generation
    found.moved_ms = job.now
  end
  redis.call('HSET', key.consumers, name, cmsgpack.pack(found))
  return reply.finish({consumer = in_reply(name, found)})
end

-- Forget consumer: remove a consumer that no process uses.
-- args   consumer
-- errors consumer_not_found, consumer_held
function commands.forget_consumer()
  local name = args.consumer
  reply.load()
  local found = consumer_named(name)
  if not found then values.refuse('consumer_not_found', {consumer = name}) end
  if found.lease_until_ms > job.now then refuse_held(name, found) end
  redis.call('HDEL', key.consumers, name)
  history.write_action('forget_consumer', nil, nil, 'consumer', name)
  return reply.finish()
end

-- Consumers: read the consumers of a job.
-- reply  consumers
function commands.consumers()
  clock.load()
  local found, stored = {}, redis.call('HGETALL', key.consumers)
  for i = 1, #stored, 2 do found[#found + 1] = in_reply(stored[i], cmsgpack.unpack(stored[i + 1])) end
  return reply.watermark_state({consumers = found})
end
