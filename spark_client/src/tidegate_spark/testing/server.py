"""A coordinator as a process of its own, which ends with the program that started it."""

import os
import re
import secrets
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tidegate_spark.job import Job, connect

_SERVING = re.compile(r"serving on (http://\S+?),")


class CoordinatorFailed(Exception):
    """The coordinator did not start; the message is what it said."""


class CoordinatorProcess:
    """``tidegate serve`` with its state in ``data_dir``; the same directory finds the same state again.

    It needs the distribution ``tidegate`` beside this one. ``settings`` go to it as ``TIDEGATE_<NAME>``.
    """

    def __init__(self, data_dir: Path, port: int = 0, **settings: str) -> None:
        self.data_dir, self.port, self.settings = data_dir, port, settings
        self.url = ""
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> Self:
        """Starts it and waits until it serves. A second start, after :meth:`stop`, serves the same address.

        :raises CoordinatorFailed: when it ends instead.
        """
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TIDEGATE_")}
        environment |= {"TIDEGATE_DATA_DIR": str(self.data_dir), "TIDEGATE_PORT": str(self.port)}
        environment |= {f"TIDEGATE_{name.upper()}": value for name, value in self.settings.items()}
        self.data_dir.mkdir(parents=True, exist_ok=True)
        log = open(self.data_dir / "coordinator.log", "a")  # noqa: SIM115 - the process keeps it
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tidegate", "serve", "--stop-with-stdin"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment,
            start_new_session=True,
        )
        log.close()
        assert self._process.stdout is not None
        told = self._process.stdout.readline()
        serving = _SERVING.search(told)
        if serving is None:
            self._process.wait()
            lines = (self.data_dir / "coordinator.log").read_text().splitlines()
            raise CoordinatorFailed(lines[-1] if lines else "The coordinator ended without a word.")
        self.url = serving.group(1)
        self.port = int(self.url.rpartition(":")[2])
        return self

    @property
    def pid(self) -> int:
        assert self._process is not None, "it does not run"
        return self._process.pid

    def job(self, *, job: str | None = None, **options: Any) -> Job:
        """A job to a job of this coordinator, by default to one that nobody else uses.

        :param options: as for :func:`tidegate_spark.connect`.
        """
        return connect(self.url, job=job or f"job-{secrets.token_hex(6)}", **options)

    def stop(self, kill: bool = False) -> None:
        """Ends it, politely or at once. Harmless when it does not run."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
            self._process.wait()
            assert self._process.stdin is not None and self._process.stdout is not None
            self._process.stdin.close()
            self._process.stdout.close()
            self._process = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
