"""A coordinator in this process, with HTTP on loopback and a real Valkey. Tests control its failures and its clock."""

import asyncio
import itertools
import secrets
import socket
import threading
from types import TracebackType
from typing import Any, Self

import redis as redis_sync
import uvicorn

from tests.support.clock import VirtualClock
from tidegate.app import create_app
from tidegate.settings import Settings
from tidegate.store.embedded import EmbeddedValkey
from tidegate_spark import Job, connect

DATABASES = 15
_database = itertools.count()

State = dict[bytes, tuple[int, bytes]]
"""Every key with its time to live in milliseconds (0: unlimited) and its serialized value."""


class LocalCoordinator:
    """The coordinator's application on its own database.

    :meth:`stop` refuses connections, like a killed coordinator. :meth:`start` serves the same address and state again.
    Unlike a process, the application starts within milliseconds. Clients from :meth:`job` use the same ``clock``.

    Args:
        valkey: The server that holds the state, in one of its databases.
        clock: Processing time; None: the machine's.
        settings: Members of :class:`Settings`.

    Attributes:
        redis_url: Address of its database.
    """

    def __init__(self, valkey: EmbeddedValkey, clock: VirtualClock | None = None, **settings: Any) -> None:
        self.database = next(_database) % DATABASES + 1
        self.clock, self.port = clock, 0
        self.redis_url = f"{valkey.url}?db={self.database}"
        self._settings = Settings(**{"sweep_interval_ms": 20, "max_clock_step_ms": 10**12} | settings)
        self.token_key = secrets.token_bytes(32)
        self._redis = redis_sync.Redis(unix_socket_path=valkey.socket, db=self.database)
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self._redis.flushdb()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def job(self, *, job: str = "j", **options: Any) -> Job:
        """Connect to a job of this coordinator."""
        if self.clock is not None:
            options["clock"] = self.clock
        return connect(self.url, job=job, **options)

    def start(self) -> Self:
        """Start serving; a restart uses the same address."""
        listening = socket.socket()
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", self.port))
        self.port = listening.getsockname()[1]
        now_ms = None if self.clock is None else self.clock.now_ms
        app = create_app(self._settings, self.redis_url, self.token_key, clock=now_ms)
        config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="on", timeout_graceful_shutdown=0)
        self._server = uvicorn.Server(config)
        serve = self._server.serve([listening])
        self._thread = threading.Thread(target=asyncio.run, args=(serve,), name="local-coordinator", daemon=True)
        self._thread.start()
        while not self._server.started:
            assert self._thread.is_alive(), "the coordinator did not start"
            self._thread.join(0.005)
        return self

    def stop(self) -> None:
        """Refuse new connections and break open ones; do nothing if the coordinator is stopped."""
        if self._server is not None and self._thread is not None:
            self._server.should_exit = True
            self._thread.join()
            self._server = self._thread = None

    def empty(self) -> None:
        """Lose all state, like a flushed Redis."""
        self._redis.flushdb()

    def state(self) -> State:
        """Return a copy of the state."""
        redis: Any = self._redis
        return {key: (max(0, redis.pttl(key)), redis.dump(key)) for key in redis.scan_iter()}

    def restore(self, state: State) -> None:
        """Restore an earlier state and lose all later changes."""
        self._redis.flushdb()
        for key, (ttl_ms, value) in state.items():
            # The sweeper may have written a key in between.
            self._redis.restore(key, ttl_ms, value, replace=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._redis.close()
