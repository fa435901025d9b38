-- Run the next step of a command (see parts/steps).
--
-- args   steps (id of the command)
-- reply  steps (the id, if another step is due), or the reply of the command
-- errors steps_lost
-- @include parts/steps
local command, ended = steps.resume()
if not command then return ended end
return commands[command]()
