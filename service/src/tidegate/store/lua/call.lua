-- The call of a command. create() makes the tables of all other files on the first call, because the standard functions of
-- Lua do not exist while Redis loads a library.
--
-- Redis keeps a library, its functions and their variables between calls. All variables of a single call are therefore in
-- `args`, in `key`, and in the tables that state.forget empties before each command.
local state, commands

-- Return the kept reply of an earlier attempt of this call.
local function known_reply()
  for _, kept in ipairs(redis.call('LRANGE', key.replies, 0, -1)) do
    local id, reply = unpack(cmsgpack.unpack(kept))
    if id == args.call then return reply end
  end
end

local function keep_reply(reply)
  redis.call('RPUSH', key.replies, cmsgpack.pack({args.call, reply}))
  redis.call('LTRIM', key.replies, -constants.REPLIES_KEPT, -1)
  redis.call('PEXPIRE', key.replies, constants.REPLIES_KEPT_MS)
end

local function call(command, keys, argument)
  if not commands then state, commands = create() end
  key.enter(keys)
  args = cmsgpack.unpack(argument)
  local known = args.call and known_reply()
  if known then return known end
  state.forget(command, argument)
  local ok, result = pcall(commands[command])
  if ok then
    if args.call then keep_reply(result) end
    return result
  end
  if type(result) == 'table' and result.refused then return {map = result.refused} end
  if type(result) == 'string' and string.find(result, '^%u+ ') then result = {err = result} end  -- keeps its code
  error(result, 0)
end

-- Register the function of a command.
local function register(name, flags, command)
  redis.register_function{function_name = name, flags = flags, callback = function(keys, arguments)
    return call(command, keys, arguments[1])
  end}
end

-- Register a function that runs commands of one job. Its arguments are alternating commands and their arguments.
local function register_together(name, flags)
  redis.register_function{function_name = name, flags = flags, callback = function(keys, arguments)
    local replies = {}
    for i = 1, #arguments, 2 do replies[#replies + 1] = call(arguments[i], keys, arguments[i + 1]) end
    return replies
  end}
end
