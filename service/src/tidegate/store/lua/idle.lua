-- Declares substreams idle: the rest no longer waits for them, until something comes of them. All or none.
--
-- KEYS  1 the job · 2 the jobs to sweep
-- ARGV  now · absent after · not after · query ('' for reports without batches) · members (column) · actor · reason
-- Reply ok, ... (parts/answer), applied (0: all were idle before)
--       or error: job_not_found, job_deleted, substream_not_found <query> <members>, substream_done <query> <members>
-- @include parts/answer
-- @include parts/end
local query, members = arg(), column()
local refused = load_job()
if refused then return refused end
refused = check_known(query, members)
if refused then return refused end
local done, ended = zmscore(K.done, members), {}
for i, member in ipairs(members) do
  if done[i] then ended[#ended + 1] = member end
end
if #ended > 0 then return problem('substream_done', query, ended) end
local last_events, live, theirs = zmscore(K.expiry(query), members), {}, {}
for i, member in ipairs(members) do
  if last_events[i] then live[#live + 1], theirs[#theirs + 1] = member, last_events[i] end
end
local left = #live > 0 and set_idle(query, live, theirs)
zadd_all(K.told, fmt(J.t), members)
if #live > 0 then act('idle', read_why(), query, live) end
look(nil, false, left)
return reply(#live > 0 and '1' or '0')
