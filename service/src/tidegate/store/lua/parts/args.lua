-- Arguments are read in order. The first three are every command's: the processing time (given by tests only; else it is
-- Redis's own), how long a time without any command is nobody's silence ('' : none is), and the latest time that can be
-- true ('' : any).
local arg_at = 0

local function arg()
  arg_at = arg_at + 1
  return ARGV[arg_at]
end

-- A column: its length, then its values.
local function column()
  local size = tonumber(arg())
  local values = {}
  for i = 1, size do values[i] = ARGV[arg_at + i] end
  arg_at = arg_at + size
  return values
end

local given_now, absent_after, not_after = arg(), num(arg()), num(arg())

local function clock()
  if given_now ~= '' then return tonumber(given_now) end
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end
