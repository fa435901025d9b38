-- Write a constant, so that a WAIT after this call waits for all earlier writes to the server.
redis.call('HSET', key.attendance, 'confirmed', 1)
return {map = {}}
