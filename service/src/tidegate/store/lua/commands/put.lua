-- Store a piece of the columns of a large command before the command (see parts/steps).
--
-- args   stored (id of the pieces), number (from 0), piece (columns)
local pieces = key.pieces(args.stored)
redis.call('HSET', pieces, args.number, cmsgpack.pack(args.piece))
redis.call('PEXPIRE', pieces, constants.PIECES_KEPT_MS)
return {map = {}}
