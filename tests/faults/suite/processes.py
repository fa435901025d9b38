"""The processes of a run besides the store: replicas of the service, and writers."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from tests.faults.suite.writer import Settings
from tests.support.proxy import Proxy
from tidegate_spark.testing.server import CoordinatorFailed, CoordinatorProcess

START_S = 90.0
THIS, PREVIOUS = "tidegate", "tests.support.versions.previous"
"""The programs of two versions of the service."""


class Replica:
    """A replica of the service, with a proxy before it and a proxy between it and the store.

    Attributes:
        wanted: Whether the replica should run. The supervisor starts it again if it ends.
    """

    def __init__(self, process: CoordinatorProcess, to_replica: Proxy, to_store: Proxy) -> None:
        self._process, self.to_replica, self.to_store = process, to_replica, to_store
        self._lock = threading.Lock()
        self.wanted = True

    @property
    def url(self) -> str:
        """The address at which clients reach the replica."""
        return f"http://127.0.0.1:{self.to_replica.port}"

    def start(self) -> None:
        """Start the replica; try again until the store answers."""
        deadline = time.monotonic() + START_S
        with self._lock:
            self.wanted = True
            while True:
                try:
                    self._process.start()
                    return
                except CoordinatorFailed:
                    self._process.stop(kill=True)
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.2)

    def stop(self, kill: bool) -> None:
        """Stop the replica by SIGTERM, or by SIGKILL."""
        with self._lock:
            self.wanted = False
            self._process.stop(kill)

    def change_version(self) -> None:
        """Let the next start run the other version of the functions: this one or the previous one."""
        with self._lock:
            self._process.program = PREVIOUS if self._process.program == THIS else THIS

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the replica."""
        with self._lock:
            os.kill(self._process.pid, number)


class WriterProcess:
    """The writer of a query: at most one process, except for a zombie that the schedule keeps.

    Args:
        settings: Returns the settings of a new process with this name.
        directory: Directory of the settings and of the log.
        query: The query.
    """

    def __init__(self, settings: Callable[[str], Settings], directory: Path, query: str) -> None:
        self._settings, self._directory, self.query = settings, directory, query
        self._lock = threading.RLock()
        self._number = 0
        self._process: subprocess.Popen[bytes] | None = None
        self.wanted = False
        self.failed = 0

    def start(self) -> None:
        """Start a new process."""
        with self._lock:
            self._number += 1
            client = f"{self.query}-{self._number}"
            path = self._directory / f"{client}.json"
            path.write_text(json.dumps(asdict(self._settings(client))))
            with open(self._directory / f"{self.query}.log", "ab") as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "tests.faults.suite.writer", str(path)],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            self.wanted = True

    def supervise(self) -> None:
        """Start a new process if the last one has ended by itself."""
        with self._lock:
            if self.wanted and self._process is not None and self._process.poll() is not None:
                self.failed += self._process.returncode != 0
                self.start()

    def kill(self) -> None:
        """Kill the process; the supervisor does not start it again."""
        with self._lock:
            self.wanted = False
            if self._process is not None:
                end(self._process)

    def release(self) -> "subprocess.Popen[bytes] | None":
        """Return the process, which is no longer supervised; :meth:`start` then runs a second one beside it."""
        with self._lock:
            process, self._process, self.wanted = self._process, None, False
            return process


def end(process: "subprocess.Popen[bytes]") -> None:
    """Kill a process, also if it is paused."""
    process.kill()
    process.wait()
    if process.stdin is not None:
        process.stdin.close()
