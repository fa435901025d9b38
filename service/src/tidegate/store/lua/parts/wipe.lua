-- @include parts/job
-- Removes all that a job holds; of its own hash and its record, nothing.
local function wipe()
  for _, hour in ipairs(redis.call('ZRANGE', K.hours, 0, -1)) do
    redis.call('UNLINK', K.hour_rows(hour), K.hour_late(hour))
  end
  for _, query in ipairs(owners()) do
    redis.call('UNLINK', K.expiry(query), K.quiet(query), K.query(query), K.pins(query), K.pin_order(query),
      K.fenced(query), K.staged(query), K.staged_watermarks(query), K.staged_rows(query), K.staged_future(query),
      K.staged_delays(query))
  end
  redis.call('UNLINK', K.tops, K.live, K.parked, K.done, K.told, K.since, K.counts, K.queries, K.owners, K.missing, K.contact,
    K.open, K.begun, K.holds, K.hold_expiry, K.hold_reasons, K.clocked, K.still, K.drift, K.due,
    K.delays, K.lags, K.hours)
  for _, limit in pairs(CLOCK_LIMITS) do redis.call('UNLINK', K.lagged(limit)) end
end

-- A job that nothing is known of, in a new incarnation.
local function fresh_job(incarnation, epoch, now)
  J = {incarnation = incarnation, epoch = epoch, clock = now, now = now, lost = J.lost or 0, coalesced_since = now,
    watermark_since = now, looks = 0, least = math.huge, retention = '', stairs = '', gaps = '', due = J.due,
    emissions = J.emissions, throttled = J.throttled, heard = J.heard}
  J.t = now - J.lost
end
