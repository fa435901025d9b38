"""The states of the servers of a store: whether they run functions and accept writes."""

from dataclasses import dataclass

from redis.exceptions import RedisError

from tidegate.store.functions import Functions


@dataclass(frozen=True, slots=True)
class ServerState:
    """The state of a server: its address ("" for the only server), its buckets, and the error of a failed check."""

    server: str
    buckets: int
    error: RedisError | None


async def server_states(functions: Functions) -> list[ServerState]:
    """Check each server, and return its state.

    Raises:
        RedisError: If the only server does not answer.
    """
    states: dict[str, ServerState] = {}
    servers, errors = functions.servers, await functions.check_each()
    for bucket, error in zip(servers.keys.buckets, errors, strict=True):
        name = servers.server_of(bucket)
        state = states.setdefault(name, ServerState(name, 0, None))
        states[name] = ServerState(name, state.buckets + 1, state.error or error)
    return [*states.values()]
