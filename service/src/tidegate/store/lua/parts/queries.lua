-- @include parts/state
-- The queries of a job: run, latest batch and idle clock. Each query is stored as one packed text, which a command reads
-- and writes at most once. run_id is nil if the query has made no call and was not retired.
local queries = {}

-- Return a query. reply.finish stores the changes of its fields. The query may be unknown.
function queries.get(name)
  local loaded, stored = state.changes.queries, state.changes.stored_queries
  if not loaded[name] then
    local packed = redis.call('GET', key.query(name))
    loaded[name] = packed and cmsgpack.unpack(packed) or {name = name, waited = 0, outage = 0}
    stored[name] = cmsgpack.pack(loaded[name])  -- packed anew, because the order of the fields in a text may vary
  end
  return loaded[name]
end

-- Write the queries that have changed.
function queries.save()
  for name, query in pairs(state.changes.queries) do
    local packed = cmsgpack.pack(query)
    if packed ~= state.changes.stored_queries[name] then redis.call('SET', key.query(name), packed) end
  end
end

-- Ignore the changes of all queries, which were removed.
function queries.forget()
  state.changes.queries, state.changes.stored_queries = {}, {}
end

return queries
