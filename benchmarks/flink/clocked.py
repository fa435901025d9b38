"""A coordinator in a process of its own, whose clock the benchmark sets.

The process serves the coordinator's application over HTTP, with an embedded Valkey. Only its clock is not real: idle
timeouts and retention then pass in the time of the data, and a run gives the same result on every machine.
"""

import multiprocessing
import secrets
import socket
import threading
from contextlib import ExitStack
from multiprocessing.connection import Connection
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from types import TracebackType
from typing import Self

import uvicorn

from tidegate.app import create_app
from tidegate.settings import Settings
from tidegate.store.embedded import EmbeddedValkey

STARTED_IN_S = 60
STOPPED_IN_S = 60
KEPT_ALIVE_S = 600
"""Time for which a silent connection stays open, in seconds: longer than a run of the benchmark."""
SETTINGS = Settings(
    # The clock moves by minutes at once, and a call moves it: the coordinator must not take this for an outage.
    sweep_interval_ms=60_000,
    max_clock_step_ms=10**12,
)


class ClockedCoordinator:
    """A coordinator process that ends with the context, or with this program.

    Args:
        data_dir: Directory of the state.
        now_ms: First processing time, in epoch milliseconds.
    """

    def __init__(self, data_dir: Path, now_ms: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._clock: Synchronized[int] = context.Value("q", now_ms)
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(data_dir, self._clock, theirs), daemon=True)
        self._theirs = theirs
        self.port = 0

    @property
    def now_ms(self) -> int:
        """Processing time, in epoch milliseconds."""
        return self._clock.value

    @now_ms.setter
    def now_ms(self, now_ms: int) -> None:
        self._clock.value = now_ms

    def __enter__(self) -> Self:
        """Start the process, and wait until it serves.

        Raises:
            RuntimeError: If the process ends, or does not serve in time.
        """
        self._process.start()
        self._theirs.close()
        try:
            if not self._pipe.poll(STARTED_IN_S):
                raise EOFError
            self.port = self._pipe.recv()
        except EOFError:
            self._process.terminate()
            raise RuntimeError("The coordinator did not start: expected its port; read its error above.") from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the process and its Valkey."""
        self._pipe.close()
        self._process.join(STOPPED_IN_S)
        if self._process.exitcode is None:
            self._process.kill()
            raise RuntimeError(f"The coordinator did not end within {STOPPED_IN_S} s after its last call.")


def _serve(data_dir: Path, clock: "Synchronized[int]", pipe: Connection) -> None:
    with ExitStack() as stack:
        valkey = stack.enter_context(EmbeddedValkey(data_dir))
        listening = stack.enter_context(socket.socket())
        listening.bind(("127.0.0.1", 0))
        app = create_app(SETTINGS, valkey.url, secrets.token_bytes(32), clock=lambda: clock.value)
        config = uvicorn.Config(app, log_config=None, access_log=False, timeout_keep_alive=KEPT_ALIVE_S)
        server = uvicorn.Server(config)
        threading.Thread(target=_stop_with, args=(pipe, server), daemon=True).start()
        listening.listen()
        pipe.send(listening.getsockname()[1])
        server.run(sockets=[listening])


def _stop_with(pipe: Connection, server: uvicorn.Server) -> None:
    """Stop the server when the benchmark closes its end of the pipe, also by its own end."""
    try:
        pipe.recv()
    except EOFError:
        server.should_exit = True
