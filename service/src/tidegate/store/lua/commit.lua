-- Makes what a batch staged effective, and takes the account of its rows. Once.
--
-- KEYS  1 the job · 2 the jobs to sweep
-- ARGV  now · absent after · not after · token incarnation · token watermark ('' '' without)
--       · query · query_id · run_id · batch · waited · counts reported ('' : not known)
--       · members (column) · on_time, updated, late, null_event_time, future (columns)
-- Reply ok, ... (parts/answer), applied (0: it had committed before, nothing was changed)
--       or error: job_not_found, job_deleted, query_fenced <run>, query_retired <query>,
--       batch_not_begun <query> <batch>, reports_missing <query> <batch> <how many>
-- @include parts/answer
-- @include parts/settle
local token = read_token()
local query, query_id, run_id, batch = arg(), arg(), arg(), tonumber(arg())
local waited, reported, members = tonumber(arg()), num(arg()), column()

local refused = load_job()
if refused then return refused end
load_query(query)
refused = check_speaker(query_id, run_id, batch)
if refused then return refused end
local open_yet = Q.open and batch == Q.latest
local missing = open_yet and reported and reported - redis.call('HLEN', K.staged_rows(query)) or 0
if missing > 0 then return problem('reports_missing', query, fmt(batch), fmt(missing)) end
heal(token)
contact()
wait(waited)
if not open_yet then return reply('0') end
look(nil, false, settle())
for _, class in ipairs({'on_time', 'updated', 'late', 'null_event_time', 'future'}) do
  local total, some, counts = 0, {}, {}
  for i, rows in ipairs(column()) do
    if rows ~= '0' then
      some[#some + 1], counts[#counts + 1] = members[i], rows
      total = total + tonumber(rows)
      if total > HIGHEST / 2 then  -- before a sum of doubles loses its last digit
        add(K.job, class, fmt(total))
        total = 0
      end
    end
  end
  count_rows(class, some, counts)
  if total > 0 then add(K.job, class, fmt(total)) end
end
return reply('1')
