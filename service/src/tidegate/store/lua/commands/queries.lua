-- Read the queries of a job with their latest batches.
--
-- reply  rows (the fields of tidegate.domain.results.QueryRow)
-- @include parts/emission
local number = values.number
clock.load()
local rows = {}
for _, query in ipairs(redis.call('ZRANGE', key.queries, 0, -1)) do
  local of = queries.get(query)
  local pinned = of.latest and redis.call('HGET', key.pinned_watermarks(query), of.latest)
  rows[#rows + 1] = {map = {query = query, query_id = of.query_id, run_id = of.run_id, batch_id = of.latest,
    batch_open = of.open or false, pinned_watermark = number(pinned), begun_ms = of.begun,
    idle_clock_ms = of.idle_clock and of.idle_clock + of.outage, last_contact_ms = of.last_contact,
    batch_released = (of.open and of.released) or false, retired = of.retired or false}}
end
return emission.watermark_state({rows = rows})
