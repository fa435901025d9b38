-- @include parts/policy
-- The members of a job. Each member is in exactly one of these sorted sets.
local config = state.config
local membership = {}

-- Return the sorted sets of the active members.
local function active_sets()
  if not config.has_clock_driven then return {key.active} end
  return {key.active, key.constant, key.advancing}
end

local function all_sets()
  local sets = active_sets()
  sets[#sets + 1] = key.frozen
  if config.has_clock_driven then sets[#sets + 1], sets[#sets + 2] = key.idle_constant, key.idle_advancing end
  return sets
end

local function size_of(sets)
  local size = 0
  for _, name in ipairs(sets) do size = size + redis.call('ZCARD', name) end
  return size
end

-- Return the number of members, with placeholders.
function membership.count()
  return size_of(all_sets())
end

function membership.count_active()
  return size_of(active_sets())
end

-- Return all members, unsorted.
function membership.all()
  local members = {}
  for _, name in ipairs(all_sets()) do
    for _, member in ipairs(redis.call('ZRANGE', name, 0, -1)) do members[#members + 1] = member end
  end
  return members
end

-- Return a column: true for each member that the job has, or else false.
function membership.known(members)
  local known, rest, places = {}, members, {}
  for i = 1, #members do known[i], places[i] = false, i end
  for _, name in ipairs(all_sets()) do
    local unknown, unknown_places = {}, {}
    for i, score in ipairs(bulk.zmscore(name, rest)) do
      local place = places[i]
      if score then
        known[place] = true
      else
        unknown[#unknown + 1], unknown_places[#unknown_places + 1] = rest[i], place
      end
    end
    if #unknown == 0 then break end
    rest, places = unknown, unknown_places
  end
  return known
end

-- Return the members that the job has, and the other members, both in order.
function membership.split(members)
  return bulk.split(members, membership.known(members))
end

return membership
