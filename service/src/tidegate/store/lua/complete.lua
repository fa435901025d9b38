-- End of input: all substreams are done, C goes to the first frame boundary above the job's top (without frames
-- top + 1), past the throttle, and the job is frozen.
--
-- KEYS  1 the job
-- ARGV  now
-- Reply ok, ... (parts/answer), applied (0: it was complete before)
--       or error: job_not_found, job_deleted, batch_open <query> <batch>
-- @include parts/answer
-- @include parts/end
local refused = load_job()
if refused then return refused end
if J.complete then
  save_job()
  return answer('0')
end
local open = redis.call('ZRANGE', K.open, 0, -1)
if #open > 0 then
  table.sort(open)
  return problem('batch_open', open[1], redis.call('HGET', K.query(open[1]), 'latest'))
end
for _, query in ipairs(owners()) do
  for _, key in ipairs({K.expiry(query), K.quiet(query)}) do
    local members = redis.call('ZRANGE', key, 0, -1)
    if #members > 0 then mark_done(query, members) end
  end
end
look()
local _, top = highest_of(K.tops)
if top then
  if J.slide then advance(frame_higher(top)) else advance(math.min(top + 1, HIGHEST)) end
  release()
end
J.complete = 1
save_job()
return answer('1')
