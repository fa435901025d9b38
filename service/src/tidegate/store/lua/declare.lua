-- Makes substreams known before their first event, so that they hold the watermark back from the start. Moves nothing.
--
-- KEYS  1 the job · 2 the jobs to sweep
-- ARGV  now · absent after · not after · query ('' for reports without batches)
--       · members · their highest event times, where they are known ('' for none) (columns; the last may be empty)
--       · actor · reason
-- Reply ok, ... (parts/answer), applied (1: at least one was new)
--       or error: job_not_found, job_deleted, job_complete
-- @include parts/answer
-- @include parts/end
local query, members, tops = arg(), column(), column()
local refused = load_job()
if refused then return refused end
local known, new, seen, seen_tops = zmscore(K.tops, members), {}, {}, {}
for i, member in ipairs(members) do
  if not known[i] then
    new[#new + 1] = member
    if num(tops[i]) then seen[#seen + 1], seen_tops[#seen_tops + 1] = member, tops[i] end
  end
end
if #new == 0 then return reply('0') end
if J.complete then return problem('job_complete') end
local observed = observed_by(query)
introduce(query, new, observed)
seen, seen_tops = set_aside_future(query, seen, seen_tops, {}, {})
observe(query, seen, seen_tops, {}, observed)
-- A history that was sampled between two looks does not fit what is reckoned from looks.
if #seen > 0 and R.clocked then J.literal = 1 end
if #seen > 0 then J.more = 1 end
act('declare', read_why(), query, new)
return reply('1')
