-- @include parts/substreams
-- Remove all keys of a job, except its hash, its journal and its timeline.
local removal = {}

function removal.remove_all()
  for _, hour in ipairs(redis.call('ZRANGE', key.hours, 0, -1)) do
    redis.call('UNLINK', key.hour_rows(hour), key.hour_late(hour))
  end
  for _, query in ipairs(substreams.query_names()) do
    for _, name in ipairs(key.of_query) do redis.call('UNLINK', key[name](query)) end
  end
  queries.forget()
  for _, limit in ipairs(constants.POLICY_LIMITS) do redis.call('UNLINK', key.lagged(limit)) end
  for _, name in ipairs(key.of_job) do redis.call('UNLINK', key[name]) end
end

return removal
