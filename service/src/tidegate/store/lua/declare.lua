-- Makes substreams known before their first event, so that they hold the watermark back from the start. Moves nothing.
--
-- KEYS  1 the job · 2 the jobs to sweep
-- ARGV  now · absent after · not after · how many substreams a job may have ('' : any number) · query ('' for reports without batches)
--       · members · their highest event times, where they are known ('' for none) (columns; the last may be empty)
--       · actor · reason
-- Reply ok, ... (parts/answer), applied (1: at least one was new)
--       or error: job_not_found, job_deleted, job_complete, too_many_substreams <how many may be>
-- @include parts/answer
-- @include parts/end
local most, query, members, tops = num(arg()), arg(), column(), column()
local refused = load_job()
if refused then return refused end
local known, done = zmscore(K.tops, members), zmscore(K.done, members)
local new, seen, seen_tops = {}, {}, {}
for i, member in ipairs(members) do
  if not known[i] then new[#new + 1] = member end
  if num(tops[i]) and not num(known[i]) and not done[i] and not J.complete then
    seen[#seen + 1], seen_tops[#seen_tops + 1] = member, tops[i]
  end
end
if #new > 0 and J.complete then return problem('job_complete') end
refused = check_room(most, new)
if refused then return refused end
local observed = observed_by(query)
if #new > 0 then introduce(query, new, observed) end
seen, seen_tops = set_aside_future(query, seen, seen_tops, {}, {})
observe(query, seen, seen_tops, {}, observed)
local is_affected, affected = {}, {}
for _, list in ipairs({new, seen}) do
  for _, member in ipairs(list) do is_affected[member] = true end
end
for _, member in ipairs(members) do
  if is_affected[member] then affected[#affected + 1] = member end
end
if #affected == 0 then return reply('0') end
-- A history that was sampled between two looks does not fit what is reckoned from looks.
if #seen > 0 and R.clocked then J.literal = 1 end
if #seen > 0 then J.more = 1 end
act('declare', read_why(), query, affected)
return reply('1')
