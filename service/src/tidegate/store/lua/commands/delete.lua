-- Delete a job and its data. A tombstone stays for some time, so that reports are refused. The highest incarnation of all
-- deleted jobs stays, so that a create starts a new incarnation.
--
-- args   version (see state.check_version), tombstones (number of tombstones that stay)
-- errors job_not_found, revision_mismatch; a repeated delete succeeds
-- @include parts/clock
-- @include parts/removal
local job = state.job
state.changes.is_step = true  -- also during another command's steps, whose remaining steps are then lost
if state.read() == 'deleted' then
  -- The tombstones of older versions do not expire.
  state.expire_tombstone(tonumber(redis.call('HGET', key.job, 'deleted')), args.tombstones)
  return {map = {}}
end
clock.load()
state.check_version(args.version)
removal.remove_all()
redis.call('UNLINK', key.journal)
for _, interval in ipairs(constants.SAMPLE_INTERVALS_MS) do redis.call('UNLINK', key.timeline(interval)) end
state.delete(args.tombstones)
redis.call('ZREM', key.sweeps, key.name)
redis.call('SREM', key.jobs, key.name)
journal.announce()
return {map = {}}
