-- Takes in highest event times. With a batch they are staged and take effect when it commits; without, at once.
--
-- KEYS  1 the job
-- ARGV  now · token incarnation · token watermark ('' '' without) · query ('' without a batch) · query_id · run_id
--       · batch · partition · members, tops, counts (columns; the counts may be empty)
-- Reply ok, ... (parts/answer), applied (0: the batch had committed already, nothing was changed)
--       or error: job_not_found, job_deleted, job_complete, query_fenced <run>, batch_not_begun <query> <batch>
-- @include parts/answer
-- @include parts/settle
local token = read_token()
local query, query_id, run_id, batch = arg(), arg(), arg(), tonumber(arg())
local partition, members, tops, counts = arg(), column(), column(), column()

local refused = load_job()
if refused then return refused end
if query == '' then
  if J.complete then return problem('job_complete') end
  heal(token)
  observe('', members, tops, J.now)
  look()
  save_job()
  return answer('1')
end

load_query(query)
refused = check_speaker(query_id, run_id, batch)
if refused then return refused end
heal(token)
contact(J.now)
local staged = Q.open and batch == Q.latest
if staged then
  local pairs_ = {}
  for i, member in ipairs(members) do
    pairs_[#pairs_ + 1], pairs_[#pairs_ + 2] = tops[i], member
  end
  zadd(K.staged(query), 'GT', pairs_)
  for i, count in ipairs(counts) do
    redis.call('HSET', K.staged_rows(query), partition .. ' ' .. members[i], count)
  end
end
save_job()
return answer(staged and '1' or '0')
