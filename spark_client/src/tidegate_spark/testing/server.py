"""A coordinator in a child process, which ends with the program that started it."""

import os
import re
import secrets
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

from tidegate_spark.job import Job, connect

_SERVING = re.compile(r"serving on (http://\S+?),")


class CoordinatorFailed(Exception):
    """The coordinator did not start; the message is the last line of its log."""


class CoordinatorProcess:
    """A coordinator (``tidegate serve``) in a child process. It needs the distribution ``tidegate``.

    As a context manager, the coordinator starts on entry and stops on exit.

    Args:
        data_dir: Directory of the coordinator's state and log. A later coordinator with this directory continues from
            the same state.
        port: Port; 0 for any free port.
        settings: Settings of the coordinator: ``name`` sets ``TIDEGATE_<NAME>``. The environment's ``TIDEGATE_*``
            variables are not inherited.

    Attributes:
        program: The Python module that runs ``serve``.
        url: Address of the coordinator, after the start.
    """

    def __init__(self, data_dir: Path, port: int = 0, **settings: str) -> None:
        self.data_dir, self.port, self.settings = data_dir, port, settings
        self.program = "tidegate"
        self.url = ""
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> Self:
        """Start the coordinator, and wait until it serves. A second start uses the address of the first.

        Raises:
            CoordinatorFailed: If the process ends before it serves.
        """
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TIDEGATE_")}
        environment |= {"TIDEGATE_DATA_DIR": str(self.data_dir), "TIDEGATE_PORT": str(self.port)}
        environment |= {f"TIDEGATE_{name.upper()}": value for name, value in self.settings.items()}
        self.data_dir.mkdir(parents=True, exist_ok=True)
        log = open(self.data_dir / "coordinator.log", "a")  # noqa: SIM115 - the process keeps it
        self._process = subprocess.Popen(
            [sys.executable, "-m", self.program, "serve", "--stop-with-stdin"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment,
            start_new_session=True,
        )
        log.close()
        assert self._process.stdout is not None
        serving = _SERVING.search(self._process.stdout.readline())
        if serving is None:
            self._process.wait()
            self.stop()
            lines = (self.data_dir / "coordinator.log").read_text().splitlines()
            raise CoordinatorFailed(lines[-1] if lines else "The coordinator ended without a log record.")
        self.url = serving.group(1)
        self.port = int(self.url.rpartition(":")[2])
        return self

    @property
    def pid(self) -> int:
        """Process id of the coordinator."""
        assert self._process is not None, "the coordinator is not running"
        return self._process.pid

    def job(self, *, job: str | None = None, **options: Any) -> Job:
        """Connect to a job of this coordinator.

        Args:
            job: Name of the job; None for a new job.
            options: Other arguments of :func:`tidegate_spark.connect`.
        """
        return connect(self.url, job=job or f"job-{secrets.token_hex(6)}", **options)

    def stop(self, kill: bool = False) -> None:
        """Stop the coordinator if it is running, by SIGTERM or, with ``kill``, by SIGKILL."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
            self._process.wait()
            assert self._process.stdin is not None and self._process.stdout is not None
            self._process.stdin.close()
            self._process.stdout.close()
            self._process = None

    def __enter__(self) -> Self:
        """Start the coordinator."""
        return self.start()

    def __exit__(self, *raised: object) -> None:
        """Stop the coordinator."""
        self.stop()
