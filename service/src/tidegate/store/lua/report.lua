-- Takes in highest event times. With a batch they are staged and take effect when it commits; without, at once.
--
-- KEYS  1 the job · 2 the jobs to sweep
-- ARGV  now · absent after · not after · how many substreams a job may have ('' : any number) · token incarnation · token watermark ('' '' without)
--       · query ('' without a batch) · query_id · run_id · batch · partition
--       · members, tops ('' for none), lowest event times, ready-made watermarks ('' for none), rows, future rows
--         (columns; the last four may be empty, or have '' for none)
--       · members, their delays (columns; see parts/delays)
-- Reply ok, ... (parts/answer), applied (0: nothing was changed; the batch had committed already, or nothing was news)
--       or error: job_not_found, job_deleted, job_complete, query_fenced <run>, query_retired <query>,
--       batch_not_begun <query> <batch>, event_time_missing <members>, too_many_substreams <how many may be>
-- @include parts/answer
-- @include parts/settle
local most = num(arg())
local token = read_token()
local query, query_id, run_id, batch = arg(), arg(), arg(), tonumber(arg())
local partition = arg()
local members, tops, bottoms, marks = column(), column(), column(), column()
local rows, future = column(), column()
local delayed, delays = column(), column()

local function lowest_event_time(some_tops, some_bottoms)
  local lowest
  for i, top in ipairs(some_tops) do
    local time = num(some_bottoms[i]) or num(top)
    if time and (not lowest or time < lowest) then lowest = time end
  end
  return lowest
end

local refused = load_job()
if refused then return refused end
if query == '' then
  refused = J.complete and problem('job_complete') or without_event_time(members, tops, marks)
    or check_room(most, members)
  if refused then return refused end
  heal(token)
  J.heard = J.now
  members, tops, marks, bottoms = set_aside_future('', members, tops, marks, bottoms)
  measure('', delayed, delays, higher(J.offered, J.coalesced))
  local applied = observe('', members, tops, marks, J.t)
  look(lowest_event_time(tops, bottoms))
  return reply(applied and '1' or '0')
end

load_query(query)
refused = check_speaker(query_id, run_id, batch) or without_event_time(members, tops, marks)
if refused then return refused end
local staged = Q.open and batch == Q.latest
refused = staged and check_room(most, members)
if refused then return refused end
heal(token)
contact()
if staged then
  for _, kind in ipairs({{K.staged_rows(query), rows}, {K.staged_future(query), future}}) do
    for i, count in ipairs(kind[2]) do
      if count ~= '' then redis.call('HSET', kind[1], partition .. ' ' .. members[i], count) end
    end
  end
  for i, member in ipairs(delayed) do
    redis.call('HSET', K.staged_delays(query), partition .. ' ' .. member, delays[i])
  end
  members, tops, marks = set_aside_future(query, members, tops, marks, bottoms)
  local seen, ready = {}, {}
  for i, member in ipairs(members) do
    if num(tops[i]) then seen[#seen + 1], seen[#seen + 2] = tops[i], member end
    if num(marks[i]) then ready[#ready + 1], ready[#ready + 2] = marks[i], member end
  end
  zadd(K.staged(query), 'GT', seen)
  zadd(K.staged_watermarks(query), 'GT', ready)
end
return reply(staged and '1' or '0')
