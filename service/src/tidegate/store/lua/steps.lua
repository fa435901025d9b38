-- @include reply
-- Steps: a command that visits all substreams of a large job runs in several function calls, because Redis serves no
-- other client during a call. Until the last step, every other command of the job is refused with `job_busy`, so clients
-- see the job before or after the command, never in between. All steps run at the time of the first step, and each step
-- is stored with its effects, so any coordinator can run the next one.
--
-- A command with many substreams in its arguments also runs in steps. The coordinator stores their columns before the
-- command, in pieces of at most constants.PIECE entries, and a call visits one piece.
--
-- A command consists of phases. A phase visits at most constants.STEP members and returns true if members remain. It
-- returns a table to end the command with this reply. job.steps is the progress of the phases: it has what they must
-- remember, id, command, phase, set and at (the place of the next member or piece).
local job = state.job
local steps = {}
local STEP = constants.STEP
local visited  -- number of members visited in this call

-- Put: store a piece of the columns of a large command before the command.
-- args   stored (id of the pieces), number (from 0), piece (columns)
function commands.put()
  local pieces = key.pieces(args.stored)
  redis.call('HSET', pieces, args.number, cmsgpack.pack(args.piece))
  redis.call('PEXPIRE', pieces, constants.PIECES_KEPT_MS)
  return {map = {}}
end

-- Store the progress of an unfinished command. Return its id, with which commands.resume continues.
local function suspend(progress)
  if not progress.id then
    local time = redis.call('TIME')
    progress.id, progress.command = time[1] .. '.' .. time[2], state.changes.command
    redis.call('HDEL', key.job, 'steps_reply')
    redis.call('HSET', key.job, 'steps_argument', state.changes.argument)
    if args.stored then
      redis.call('RENAME', key.pieces(args.stored), key.columns)
      redis.call('PERSIST', key.columns)
    end
  end
  local changes = state.changes
  progress.changes = {before = changes.before, passed = changes.passed, unattended = changes.unattended,
    previous_now = changes.previous_now, is_recorded = changes.is_recorded, clock = changes.clock,
    was_restored = changes.was_restored}
  job.steps = progress
  schedule.sweep_now()  -- if this coordinator stops, the sweeper of another one continues
  queries.save()
  state.save()
  return {map = {steps = progress.id}}
end

-- Store the reply, because the coordinator that sent the command may not be the one that ran the last step.
local function finish(progress, result)
  if not progress.id then
    if args.stored then redis.call('UNLINK', key.pieces(args.stored)) end
    return result
  end
  redis.call('HDEL', key.job, 'steps_argument')
  redis.call('UNLINK', key.columns)
  redis.call('HSET', key.job, 'steps_reply', cmsgpack.pack({progress.id, result}))
  return result
end

-- End a command that a phase has refused before its first write. Raise all other errors, and job_busy, after which the
-- coordinator repeats the command.
local function refuse(progress, reason)
  if type(reason) ~= 'table' or not reason.refused or reason.refused.steps then error(reason, 0) end
  if progress.id then
    state.read()
    job.steps = nil
    -- Otherwise the next command would not see the time that has passed: a sample of the timeline, and unattended time.
    for name, value in pairs(progress.changes.clock or {}) do job[name] = value end
    state.save()
  end
  return finish(progress, {map = reason.refused})
end

-- Run the phases of a command until its end, or until this call has visited enough members.
function steps.run(phases)
  -- Until a phase reads the job, its table is that of the previous command.
  local progress = state.changes.is_step and job.steps or {phase = 1, set = 1, at = 0}
  visited = 0
  while true do
    job.steps = nil  -- the last phase stores the job without it
    local ok, result = pcall(phases[progress.phase], progress)
    if not ok then return refuse(progress, result) end
    if type(result) == 'table' then return finish(progress, result) end
    if not result then progress.phase, progress.set, progress.at = progress.phase + 1, 1, 0 end
    if visited >= STEP then return suspend(progress) end
  end
end

-- Resume: run the next step of a command.
-- args   steps (id of the command)
-- reply  steps (the id, if another step is due), or the reply of the command
-- errors steps_lost
function commands.resume()
  state.changes.is_step = true
  local found, id = state.read(), args.steps
  if found == 'live' and job.steps and job.steps.id == id then
    local progress = job.steps
    args = cmsgpack.unpack(redis.call('HGET', key.job, 'steps_argument'))
    for name, value in pairs(progress.changes) do state.changes[name] = value end
    return commands[progress.command]()
  end
  local stored = redis.call('HGET', key.job, 'steps_reply')
  local ended = stored and cmsgpack.unpack(stored)
  if ended and ended[1] == id then return ended[2] end
  values.refuse('steps_lost')
end

-- Visits, within a phase

-- Call visit(members, i) for the members of each sorted set, in order. A set is a key, or {key, from, to} for the members
-- with a score in this range. visit may return how many of its members have left the set or the range. Return whether
-- members remain.
function steps.each(progress, sets, visit)
  while progress.set <= #sets do
    local set, members = sets[progress.set], nil
    if type(set) == 'table' then
      members = redis.call('ZRANGE', set[1], set[2], set[3], 'BYSCORE', 'LIMIT', progress.at, STEP)
    else
      members = redis.call('ZRANGE', set, progress.at, progress.at + STEP - 1)
    end
    visited = visited + #members + 1
    progress.at = progress.at + #members - (#members > 0 and visit(members, progress.set) or 0)
    if #members < STEP then progress.set, progress.at = progress.set + 1, 0 end
    if visited >= STEP then return progress.set <= #sets end
  end
  return false
end

-- Call visit(piece) for the next of the stored pieces in a range {first, count}. Without a range, the arguments are the
-- only piece. Return whether pieces remain.
function steps.pieces(progress, range, visit)
  if not range then
    visit(args)
    return false
  end
  if range.count == 0 then return false end
  local stored = progress.id and key.columns or key.pieces(args.stored)
  local packed = redis.call('HGET', stored, range.first + progress.at)
  if not packed then values.refuse('steps_lost') end
  visit(cmsgpack.unpack(packed))
  visited, progress.at = STEP, progress.at + 1
  return progress.at < range.count
end

-- Call visit(piece) for the next piece of the command's members. Return whether pieces remain.
function steps.members(progress, visit) return steps.pieces(progress, args.stored and args.members, visit) end

-- Return a phase that calls visit(progress, piece) for each piece of the command's members.
function steps.each_piece(visit)
  return function(progress)
    return steps.members(progress, function(piece) visit(progress, piece) end)
  end
end

-- Visit the pieces of the command's members. check(piece) returns members for which the command is refused, and
-- refuse(members) refuses it for those of all pieces.
function steps.check(progress, check, refuse)
  local remain = steps.members(progress, function(piece)
    for _, member in ipairs(check(piece)) do
      progress.refused = progress.refused or {}
      progress.refused[#progress.refused + 1] = member
    end
  end)
  if not remain and progress.refused then refuse(progress.refused) end
  return remain
end

return steps
