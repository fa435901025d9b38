-- @include parts/job
-- Which policy a substream is under: the first override whose pattern fits its name, else the job's.

-- Pieces are what stands between the stars of a pattern; each is looked for once, from left to right.
local function matches(pieces, name)
  local first, last = pieces[1], pieces[#pieces]
  if #pieces == 1 then return name == first end
  if string.sub(name, 1, #first) ~= first then return false end
  local at = #first + 1
  for i = 2, #pieces - 1 do
    local from, to = string.find(name, pieces[i], at, true)
    if not from then return false end
    if to then at = math.max(to + 1, from) end
  end
  return #name - at + 1 >= #last and (last == '' or string.sub(name, -#last) == last)
end

local PLACEHOLDER, SLASH = {type = 'reported'}, 47

local function query_of(member)
  return string.sub(member, 1, string.find(member, '/', 1, true) - 1)
end

local function name_of(member)
  return string.sub(member, string.find(member, '/', 1, true) + 1)
end

local function policy_by(rules, member)
  local default = rules.policies[1]
  if #rules.policies == 1 and string.byte(member, -1) ~= SLASH then return default end
  local name = name_of(member)
  if name == '' then return PLACEHOLDER end
  for i = 2, #rules.policies do
    if matches(rules.policies[i].pieces, name) then return rules.policies[i] end
  end
  return default
end

local function policy_of(member)
  return policy_by(R, member)
end

-- Members that follow the clock, and the others, each list in order.
local function by_kind(members)
  if not R.clocked then return members, {} end
  local flat, clocked = {}, {}
  for _, member in ipairs(members) do
    local kind = policy_of(member).limit and clocked or flat
    kind[#kind + 1] = member
  end
  return flat, clocked
end
