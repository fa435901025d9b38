-- @include parts/state
-- @include parts/bulk
-- The policy of a substream, and its lag. A member is '<query>/<substream>'; query names have no slash.
local config = state.config
local policy = {PLACEHOLDER = {type = 'reported', accepts_watermarks = true}}
local SLASH = 47
-- The policies of the last names, by the list of policies and by name. Without them, each report would match each of its
-- names with each pattern. Their number is bounded, because maxmemory does not count this table.
local remembered, size, MAX_REMEMBERED = {}, 0, 20000

function policy.query_of(member)
  return string.sub(member, 1, string.find(member, '/', 1, true) - 1)
end

function policy.name_of(member)
  return string.sub(member, string.find(member, '/', 1, true) + 1)
end

-- Return whether a name matches a pattern. pieces: the texts between the * of the pattern, which are searched once, from
-- left to right. The first place of each piece leaves the most room for the next one, so no other place is tried.
local function matches(pieces, name)
  local count = #pieces
  local first, last = pieces[1], pieces[count]
  if count == 1 then return name == first end
  if last ~= '' and string.sub(name, -#last) ~= last then return false end
  if first ~= '' and string.sub(name, 1, #first) ~= first then return false end
  local at = #first + 1
  for i = 2, count - 1 do
    local from, to = string.find(name, pieces[i], at, true)
    if not from then return false end
    at = math.max(to + 1, from)  -- an empty piece ends before it begins
  end
  return #name - at + 1 >= #last
end

local function first_match(policies, name)
  for i = 2, #policies do
    if matches(policies[i].pieces, name) then return policies[i] end
  end
  return policies[1]
end

-- Return the policy of a member: the first override in `policies` that matches, or else the policy of the job.
function policy.among(policies, member)
  if #policies == 1 and string.byte(member, -1) ~= SLASH then return policies[1] end
  local name = policy.name_of(member)
  if name == '' then return policy.PLACEHOLDER end
  local of_name = remembered[policies]
  if of_name and of_name[name] then return of_name[name] end
  if size >= MAX_REMEMBERED then remembered, size, of_name = {}, 0, nil end
  if not of_name then
    of_name = {}
    remembered[policies] = of_name
  end
  of_name[name], size = first_match(policies, name), size + 1
  return of_name[name]
end

function policy.of(member)
  return policy.among(config.policies, member)
end

-- Return the members whose policies do not follow the clock, and the other members, both in order.
function policy.by_kind(members)
  if not config.has_clock_driven then return members, {} end
  local flat, clock_driven = {}, {}
  for _, member in ipairs(members) do
    local kind = policy.of(member).limit and clock_driven or flat
    kind[#kind + 1] = member
  end
  return flat, clock_driven
end

function policy.is_target(rule)
  return rule.type == 'target_completeness'
end

-- Return a learned lag, limited to the range from floor to ceiling of its policy.
function policy.within(rule, lag)
  return math.max(rule.ceiling_ms and math.min(lag, rule.ceiling_ms) or lag, rule.floor_ms)
end

-- Return the lag in force of each member; false if the policy has no lag.
function policy.lags_of(members)
  local lags, targets, names = {}, {}, {}
  for i, member in ipairs(members) do
    local rule = policy.of(member)
    lags[i] = rule.initial_lag or false
    if policy.is_target(rule) then targets[#targets + 1], names[#names + 1] = i, member end
  end
  for at, line in pairs(#names > 0 and bulk.hmget(key.learned_lags, names) or {}) do
    local learned = line and tonumber(string.match(line, '^%d+'))
    if learned then lags[targets[at]] = policy.within(policy.of(names[at]), learned) end
  end
  return lags
end

-- Return the lag of a policy under which a watermark is max event time - lag; nil for other policies.
function policy.constant_lag(rule)
  return rule.type == 'limiting_lag' and rule.initial_lag or nil
end

-- Return the lag of a member whose watermark is always max event time - lag; nil for other policies.
function policy.flat_lag(rule, member)
  if policy.is_target(rule) then return policy.lags_of({member})[1] end
  return policy.constant_lag(rule)
end

return policy
