"""The faults. Each function begins a fault, lets it last, and ends it."""

import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from redis.exceptions import RedisError

from tests.faults.suite.store import POWER_LOSS_S
from tests.faults.suite.world import World
from tests.support.ports import free_port
from tests.support.proxy import Direction, Proxy

Fault = Callable[[World, random.Random], None]
BLOCK = 1024 * 1024


def last(rng: random.Random, longest_s: float = 2.5) -> None:
    """Let a fault last for a while."""
    time.sleep(rng.uniform(0.3, longest_s))


# -- the store ----------------------------------------------------------------------------------------------------


def store_killed(world: World, rng: random.Random) -> None:
    """Kill the store. The operating system keeps what it has written."""
    world.store.kill()
    last(rng)
    world.store.start()


def store_loses_power(world: World, rng: random.Random) -> None:
    """Kill the store, and lose up to the last second of its file."""
    with world.losing(POWER_LOSS_S):
        world.store.lose_power(rng)
        last(rng)
        world.store.start()


def store_paused(world: World, rng: random.Random) -> None:
    """Stop the process of the store for a while."""
    world.store.send(signal.SIGSTOP)
    last(rng, 7)  # also longer than the timeout of the service's calls
    world.store.send(signal.SIGCONT)


def store_full(world: World, rng: random.Random) -> None:
    """Let the store refuse writes because it has reached its memory limit."""
    world.store.client.config_set("maxmemory", "1mb")
    last(rng)
    world.store.client.config_set("maxmemory", "0")


def store_without_replicas(world: World, rng: random.Random) -> None:
    """Let the store refuse writes because it lacks replicas."""
    world.store.client.config_set("min-replicas-to-write", 1)
    last(rng)
    world.store.client.config_set("min-replicas-to-write", 0)


def store_is_replica(world: World, rng: random.Random) -> None:
    """Make the store a read-only replica of a primary that does not answer."""
    world.store.client.replicaof("127.0.0.1", free_port())
    last(rng)
    world.store.client.replicaof("NO", "ONE")


def store_flushed(world: World, rng: random.Random) -> None:
    """Delete all data of the store."""
    with world.losing(float("inf")):
        world.store.client.flushall()


def functions_flushed(world: World, rng: random.Random) -> None:
    """Delete all functions of the store."""
    world.store.client.function_flush("SYNC")


def disk_full(world: World, rng: random.Random) -> None:
    """Fill the disk of the store. With ``appendfsync always`` the store ends; it starts again after the fault."""
    ballast = world.disk / "ballast"
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(BLOCK))
    with ballast.open("ab", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"0")
    last(rng)
    os.truncate(ballast, 0)
    ballast.unlink()
    if not world.store.is_running():
        world.store.kill()
        world.store.start()


# -- the clock of the store ---------------------------------------------------------------------------------------


def _step(world: World, rng: random.Random, offset_s: int) -> None:
    world.store.set_clock(offset_s)
    last(rng)
    world.store.set_clock(0)


def clock_forward(world: World, rng: random.Random) -> None:
    """Move the clock forward, by less than ``max_clock_step_ms``, and back."""
    _step(world, rng, rng.randint(5, 40))


def clock_jump(world: World, rng: random.Random) -> None:
    """Move the clock forward, by more than ``max_clock_step_ms``, and back."""
    _step(world, rng, rng.randint(600, 90_000))


def clock_back(world: World, rng: random.Random) -> None:
    """Move the clock back, and forward again."""
    _step(world, rng, -rng.randint(5, 40))


def clock_far_back(world: World, rng: random.Random) -> None:
    """Move the clock back by more than ``max_clock_step_ms``, and forward again."""
    _step(world, rng, -rng.randint(600, 90_000))


# -- replicas -----------------------------------------------------------------------------------------------------


def replica_killed(world: World, rng: random.Random) -> None:
    """Kill a replica, and start it again."""
    replica = rng.choice(world.replicas)
    replica.stop(kill=True)
    last(rng)
    replica.start()


def replica_restarted(world: World, rng: random.Random) -> None:
    """Restart a replica by SIGTERM."""
    replica = rng.choice(world.replicas)
    replica.stop(kill=False)
    replica.start()


def replica_of_other_version(world: World, rng: random.Random) -> None:
    """Stop a replica, and start it with the functions of the other version."""
    replica = rng.choice(world.replicas)
    replica.stop(kill=rng.random() < 0.5)
    world.other_version_from = min(world.other_version_from, time.monotonic())
    replica.change_version()
    replica.start()


def replica_paused(world: World, rng: random.Random) -> None:
    """Stop the process of a replica for a while."""
    replica = rng.choice(world.replicas)
    replica.send(signal.SIGSTOP)
    last(rng, 6)
    replica.send(signal.SIGCONT)


# -- writers ------------------------------------------------------------------------------------------------------


def writer_killed(world: World, rng: random.Random) -> None:
    """Kill a writer at any point of a batch, and start it again."""
    writer = rng.choice(world.writers)
    writer.kill()
    last(rng, 1)
    writer.start()


def writer_replaced(world: World, rng: random.Random) -> None:
    """Pause a writer, run another one on its checkpoint, and let the first one continue."""
    writer = rng.choice(world.writers)
    first = writer.release()
    assert first is not None, f"no writer of {writer.query} runs"
    first.send_signal(signal.SIGSTOP)
    writer.start()
    last(rng, 5)
    first.send_signal(signal.SIGCONT)
    world.zombie(first, 10)


# -- the network --------------------------------------------------------------------------------------------------


def _some(world: World, rng: random.Random, of: str) -> list[Proxy]:
    """Return the proxies ``of`` one replica, or of all replicas."""
    replicas: Sequence[object] = world.replicas if rng.random() < 0.5 else [rng.choice(world.replicas)]
    return [getattr(replica, of) for replica in replicas]


def _disturb(world: World, rng: random.Random, of: str, disturb: Callable[[Proxy], None], longest_s: float = 3) -> None:
    proxies = _some(world, rng, of)
    for proxy in proxies:
        disturb(proxy)
    last(rng, longest_s)
    for proxy in proxies:
        world.proxies.call(proxy.heal)


def _delayed(of: str) -> Fault:
    def fault(world: World, rng: random.Random) -> None:
        there, back = Direction(rng.uniform(0, 0.3)), Direction(rng.uniform(0, 0.3))

        def delay(proxy: Proxy) -> None:
            proxy.to_server, proxy.to_client = there, back

        _disturb(world, rng, of, delay)

    return fault


def _dropped(of: str, direction: str) -> Fault:
    def fault(world: World, rng: random.Random) -> None:
        _disturb(world, rng, of, lambda proxy: setattr(proxy, direction, Direction(drops=True)), 7)

    return fault


def _cut(of: str) -> Fault:
    def fault(world: World, rng: random.Random) -> None:
        def cut(proxy: Proxy) -> None:
            proxy.refuses = True
            world.proxies.call(proxy.cut)

        _disturb(world, rng, of, cut)

    return fault


def requests_repeated(world: World, rng: random.Random) -> None:
    """Let the service receive many requests twice, also late."""
    _disturb(world, rng, "to_replica", lambda proxy: setattr(proxy, "repeats", 0.7), 4)


FAULTS: dict[str, Fault] = {
    "store killed": store_killed,
    "store loses power": store_loses_power,
    "store paused": store_paused,
    "store at maxmemory": store_full,
    "store without replicas": store_without_replicas,
    "store is a replica": store_is_replica,
    "store flushed": store_flushed,
    "functions flushed": functions_flushed,
    "disk full": disk_full,
    "clock forward": clock_forward,
    "clock jump": clock_jump,
    "clock back": clock_back,
    "clock far back": clock_far_back,
    "replica killed": replica_killed,
    "replica restarted": replica_restarted,
    "replica paused": replica_paused,
    "replica of another version": replica_of_other_version,
    "writer killed": writer_killed,
    "two writers": writer_replaced,
    "store link delayed": _delayed("to_store"),
    "store link loses requests": _dropped("to_store", "to_server"),
    "store link loses answers": _dropped("to_store", "to_client"),
    "store link cut": _cut("to_store"),
    "client link delayed": _delayed("to_replica"),
    "client link loses requests": _dropped("to_replica", "to_server"),
    "client link loses answers": _dropped("to_replica", "to_client"),
    "client link cut": _cut("to_replica"),
    "requests repeated": requests_repeated,
}
"""The faults by name."""


def possible(world: World) -> list[str]:
    """Return the faults that this machine and the plan allow."""
    excluded = set()
    if world.plan.appendfsync == "always":
        excluded.add("store loses power")
    if not world.has_disk:
        excluded.add("disk full")
    if not world.store.has_clock:
        excluded |= {name for name in FAULTS if name.startswith("clock")}
    return [name for name in FAULTS if name not in excluded]


def reset(world: World) -> None:
    """End what a failed fault has left behind."""
    for proxy in world.proxies.proxies:
        world.proxies.call(proxy.heal)
    if world.store.is_running():
        world.store.send(signal.SIGCONT)
        with suppress(RedisError):
            world.store.client.config_set("maxmemory", "0")
    else:
        world.store.kill()
        world.store.start()
