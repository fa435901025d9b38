-- Makes what a batch staged effective, and takes the account of its rows. Once.
--
-- KEYS  1 the job · 2 the jobs to sweep
-- ARGV  now · absent after · not after · token incarnation · token watermark ('' '' without)
--       · query · query_id · run_id · batch · waited · counts reported ('' : not known)
--       · members (column) · on_time, updated, late, null_event_time, future (columns) · late ones diverted (1/0)
--       · by hour of event time: which of the members (from 1), hours, rows, updated, late (columns)
--       · of the job: hours, rows, updated, late, rows that the former have not (columns)
-- Reply ok, ... (parts/answer), applied (0: it had committed before, nothing was changed)
--       or error: job_not_found, job_deleted, query_fenced <run>, query_retired <query>,
--       batch_not_begun <query> <batch>, reports_missing <query> <batch> <how many>
-- @include parts/answer
-- @include parts/settle
-- @include parts/ledger
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
local function account(class, column_)
  local total, some, counts = 0, {}, {}
  for i, rows in ipairs(column_) do
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
local late
for _, class in ipairs({'on_time', 'updated', 'late', 'null_event_time', 'future'}) do
  local counts = column()
  account(class, counts)
  if class == 'late' then late = counts end
end
local diverted = arg() == '1'
if diverted then account('diverted', late) end
local places = column()
local each = {hours = column(), rows = column(), updated = column(), late = column()}
local all = {hours = column(), rows = column(), updated = column(), late = column(), untold = column()}
if #all.hours > 0 then
  enter_hours(members, zmscore(K.tops, members), diverted and 'diverted' or 'dropped', places, each, all)
end
return reply('1')
