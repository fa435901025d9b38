-- Delete a job and its data. A tombstone stays, so that reports are refused and a create starts a new incarnation.
--
-- args   expected_revision (absent: any)
-- errors job_not_found (never created), revision_mismatch; a repeated delete succeeds
-- @include parts/clock
-- @include parts/removal
local job = state.job
state.changes.is_step = true  -- also during another command's steps, whose remaining steps are then lost
if state.read() == 'deleted' then return {map = {}} end
clock.load()
if args.expected_revision and job.revision ~= args.expected_revision then
  values.refuse('revision_mismatch', {revision = job.revision})
end
removal.remove_all()
redis.call('UNLINK', key.journal)
for _, interval in ipairs(constants.SAMPLE_INTERVALS_MS) do redis.call('UNLINK', key.timeline(interval)) end
state.delete()
redis.call('ZREM', key.sweeps, key.name)
redis.call('SREM', key.jobs, key.name)
journal.announce()
return {map = {}}
