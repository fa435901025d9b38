"""The store of a run: a server process of Redis or Valkey that the schedule kills, pauses, fills and moves in time."""

import os
import random
import signal
import subprocess
import threading
import time
from collections import deque
from contextlib import suppress
from pathlib import Path

from redis import Redis
from redis.exceptions import RedisError

from tests.support.ports import free_port
from tests.support.programs import FAKETIME

START_S = 60.0
SAMPLE_S = 0.05
POWER_LOSS_S = 1.0
"""Longest time whose writes a power loss loses with ``appendfsync everysec``."""


class StoreFailed(Exception):
    """The store did not start; the message names its log."""


class Store:
    """A server with an append-only file.

    Args:
        binary: The server.
        directory: Directory of the files.
        appendfsync: ``always`` or ``everysec``.
        has_clock: Whether :meth:`set_clock` works.
    """

    def __init__(self, binary: str, directory: Path, appendfsync: str, has_clock: bool) -> None:
        self.binary, self.directory, self.appendfsync, self.has_clock = binary, directory, appendfsync, has_clock
        self.port = int(free_port())
        self.client = Redis(port=self.port, socket_timeout=10)
        self._clock = directory.parent / "clock"
        self._process: subprocess.Popen[bytes] | None = None
        self._sizes: deque[tuple[float, Path, int]] = deque(maxlen=int(20 / SAMPLE_S))
        self._closing = threading.Event()
        self._sampling = threading.Thread(target=self._sample, name="file sizes", daemon=True)
        self._write_clock(0)

    def start(self) -> None:
        """Start the server unless it runs, and wait until it has read its file.

        Raises:
            StoreFailed: If the server does not start.
        """
        if self.is_running():
            return
        options = {
            "port": self.port, "bind": "127.0.0.1", "dir": self.directory, "save": "", "appendonly": "yes",
            "appendfsync": self.appendfsync, "maxmemory-policy": "noeviction", "aof-load-truncated": "yes",
            "logfile": self.directory.parent / "store.log",
        }  # fmt: skip
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        self._process = subprocess.Popen(
            [self.binary, *words], env=os.environ | self._of_clock(), start_new_session=True
        )
        deadline = time.monotonic() + START_S
        while not self._answers():
            if not self.is_running() or time.monotonic() > deadline:
                self.kill()
                raise StoreFailed(f"The store did not start; its log is {options['logfile']}.")
            time.sleep(0.05)
        if not self._sampling.is_alive():
            self._sampling.start()

    def _of_clock(self) -> dict[str, str]:
        if not self.has_clock:
            return {}
        return {
            "LD_PRELOAD": str(FAKETIME),
            "FAKETIME_TIMESTAMP_FILE": str(self._clock),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def _answers(self) -> bool:
        with suppress(RedisError, OSError):
            return bool(self.client.ping())
        return False

    def is_running(self) -> bool:
        """Return whether the process runs, or is paused."""
        return self._process is not None and self._process.poll() is None

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        assert self._process is not None, "the store is not running"
        self._process.send_signal(number)

    def kill(self) -> None:
        """Kill the process, and do nothing if it has ended."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def lose_power(self, rng: random.Random) -> int:
        """Kill the process, and lose up to the last second of its file. Return the number of lost bytes.

        A kill alone loses nothing that the server has written: the operating system keeps it.
        """
        now = time.monotonic()
        self.kill()
        kept_until = now - rng.uniform(0, POWER_LOSS_S)
        path = self._latest_file()
        earlier = [size for at, of, size in list(self._sizes) if at <= kept_until and of == path]
        size = path.stat().st_size
        kept = max(earlier, default=size)
        os.truncate(path, kept)
        return size - kept

    def set_clock(self, offset_s: int) -> None:
        """Move the clock of the server to ``offset_s`` after the time of the machine, and wait until it has moved."""
        assert self.has_clock, "this server does not run with libfaketime"
        self._write_clock(offset_s)
        deadline = time.monotonic() + START_S
        while abs(self.client.time()[0] - time.time() - offset_s) > 2:
            assert time.monotonic() < deadline, f"the clock of the store did not move by {offset_s} s"
            time.sleep(0.1)

    def _write_clock(self, offset_s: int) -> None:
        written = self._clock.with_suffix(".new")
        written.write_text(f"{offset_s:+d}\n")
        written.rename(self._clock)

    def close(self) -> None:
        """End the process."""
        self._closing.set()
        self.kill()
        if self._sampling.is_alive():
            self._sampling.join()
        self.client.close()

    def _latest_file(self) -> Path:
        """Return the file to which the server appends."""
        found = (self.directory / "appendonlydir").glob("*.incr.aof")
        return max(found, key=lambda path: int(path.name.split(".")[-3]))

    def _sample(self) -> None:
        """Record the size of the file, from which a power loss is computed."""
        while not self._closing.wait(SAMPLE_S):
            with suppress(OSError, ValueError):  # no file yet, or the server replaces it at this moment
                path = self._latest_file()
                self._sizes.append((time.monotonic(), path, path.stat().st_size))


def clock_works(binary: str, directory: Path) -> bool:
    """Return whether the server runs with libfaketime. Servers with jemalloc do not start with it."""
    if not FAKETIME.exists():
        return False
    (directory / "data").mkdir(parents=True)
    store = Store(binary, directory / "data", "everysec", has_clock=True)
    try:
        store.start()
        store.set_clock(3600)
    except (StoreFailed, AssertionError):
        return False
    finally:
        store.close()
    return True
