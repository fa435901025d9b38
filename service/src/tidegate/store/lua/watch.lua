-- A job after a look, and what its record holds beyond what is known: at one and the same moment.
--
-- KEYS  1 the job · 2 the jobs to sweep
-- ARGV  now · absent after · not after · id of the last record known ('' : none) · how many at the most
-- Reply ok, ... (parts/answer), id of the newest record, the one known (id, fields; nothing where it is not kept, so that
--       those after it may not be either), the records after it (id, fields)
--       or error: job_not_found, job_deleted
-- @include parts/answer
local known, most = arg(), arg()
local refused = load_job()
if refused then return refused end
look(nil, true)
local found = reply()
found[#found + 1] = redis.call('XREVRANGE', K.log, '+', '-', 'COUNT', 1)[1][1]
local kept = known ~= '' and redis.call('XRANGE', K.log, known, known) or {}
found[#found + 1] = kept
found[#found + 1] = #kept > 0 and redis.call('XRANGE', K.log, '(' .. known, '+', 'COUNT', most) or {}
return found
