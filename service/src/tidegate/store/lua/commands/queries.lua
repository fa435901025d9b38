-- Read the queries of a job with their latest batches.
--
-- reply  rows (the fields of tidegate.domain.results.QueryRow)
-- @include parts/emission
local number = values.number
clock.load()
local rows = {}
for _, query in ipairs(redis.call('ZRANGE', key.queries, 0, -1)) do
  local f, FIELDS = {}, {'query_id', 'run_id', 'latest', 'open', 'begun', 'idle_clock', 'last_contact', 'outage', 'released',
    'retired'}
  for i, value in ipairs(redis.call('HMGET', key.query(query), unpack(FIELDS))) do f[FIELDS[i]] = value end
  local pinned = f.latest and redis.call('HGET', key.pinned_watermarks(query), f.latest)
  local idle_clock = number(f.idle_clock)
  rows[#rows + 1] = {map = {query = query, query_id = f.query_id, run_id = f.run_id, batch_id = number(f.latest),
    batch_open = f.open == '1', pinned_watermark = number(pinned), begun_ms = number(f.begun),
    idle_clock_ms = idle_clock and idle_clock + (number(f.outage) or 0), last_contact_ms = number(f.last_contact),
    batch_released = f.open == '1' and f.released == '1', retired = f.retired == '1'}}
end
return emission.watermark_state({rows = rows})
