"""Runs of the pipeline, and the calls that they recorded."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from tests.support.pipeline import Died, Settings, execute
from tests.support.points import watch
from tidegate_spark.protocol.checkpoint import Checkpoint
from tidegate_spark.protocol.transport import HttpTransport
from tidegate_spark.testing import ensure_java

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 480
"""Time after which a run counts as hung, before the test times out. Clusters of Java processes may need minutes."""
LINES = 3000
"""Number of lines of each log that a hung run shows. The stacks of a Java process with Spark take a thousand."""
SILENCED = {HttpTransport: ("send",), Checkpoint: ("write", "delete")}
"""Methods of the client that fail once the driver is dead."""


def environment(**more: str) -> dict[str, str]:
    """Return the environment for processes with their own Spark: the same Java and Python, on loopback only."""
    ensure_java()
    # Variables that the demo or a Spark of this process has set would change the log level.
    own = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    return {**own, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(ROOT), "PYTHONFAULTHANDLER": "1", **more}


@contextmanager
def started(settings: Settings) -> Iterator["subprocess.Popen[bytes]"]:
    """Start the pipeline in its own process, which ends with the block."""
    (Path(settings.directory) / "out").mkdir(exist_ok=True)
    with open(Path(settings.directory) / "pipeline.log", "a") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.pipeline", settings.argument()],
            cwd=settings.directory,
            env=environment(),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def run(settings: Settings) -> int:
    """Run the pipeline in its own process; return its exit status. Fail with the logs and stacks if the run hangs."""
    with started(settings) as process:
        try:
            return process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            _write_stacks(process)
            pytest.fail(f"The pipeline did not end within {TIMEOUT_S} s.\n{_logs(Path(settings.directory))}")


def _write_stacks(process: "subprocess.Popen[bytes]") -> None:
    """Have a hung run, and the clusters of the test, write the stacks of their threads to their logs."""
    for java in psutil.Process().children(recursive=True):
        if java.name() == "java":
            java.send_signal(signal.SIGQUIT)
    time.sleep(2)
    process.send_signal(signal.SIGABRT)  # faulthandler writes the stacks of Python
    with suppress(subprocess.TimeoutExpired):
        process.wait(10)


def _logs(directory: Path) -> str:
    """Return the last lines of all logs of a run: of the pipeline, and of the processes of its cluster or server."""
    # pytest also makes a link to the folder of a server.
    servers = (each for each in directory.parent.glob("connect*") if not each.is_symlink())
    folders = [directory, *servers]
    logs = [log for each in folders for name in ("*.log", "stderr") for log in sorted(each.rglob(name))]
    logs.sort(key=lambda log: log.name == "pipeline.log")  # last, because output that is cut begins later
    last = {log: log.read_text(errors="replace").splitlines()[-LINES:] for log in logs}
    return "\n".join(f"== {log.relative_to(directory.parent)}\n" + "\n".join(lines) for log, lines in last.items())


def run_here(spark: SparkSession, settings: Settings) -> bool:
    """Run the pipeline on a session of this process; return whether it reached the end of its input.

    The driver dies at the point in the settings, if there is one. The batch fails, and afterwards the client of that
    run neither sends nor writes anything.
    """
    (Path(settings.directory) / "out").mkdir(exist_ok=True)
    dead = False

    def reached(point: str, batch_id: int) -> None:
        nonlocal dead
        dead = dead or (point, batch_id) == (settings.die, settings.of)
        if dead:
            raise Died(point)

    def alive(*_: Any) -> None:
        if dead:
            raise Died("the driver has died")

    with pytest.MonkeyPatch.context() as patch:
        watch(reached, patch.setattr)
        for owner, names in SILENCED.items():
            for name in names:
                patch.setattr(owner, name, _after(alive, getattr(owner, name)))
        try:
            execute(spark, settings, reached)
        except StreamingQueryException as error:
            if not (dead and Died.__name__ in str(error)):
                raise
    return not dead


def _after(check: Callable[[], None], call: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(call)
    def checked(*args: Any, **named: Any) -> Any:
        check()
        return call(*args, **named)

    return checked


@dataclass(frozen=True)
class Call:
    """A call of a function of the pipeline."""

    kind: str
    batch: int
    pinned_watermark: int | None
    replayed: bool
    rows: list[Any]


def calls(directory: Path) -> list[Call]:
    """Return all calls in their order."""
    found = []
    for path in (directory / "out").glob("*.json"):
        kind, _, order, *_ = path.stem.split("-")
        found.append((int(order), Call(kind=kind, **json.loads(path.read_text()))))
    return [call for _, call in sorted(found, key=lambda pair: pair[0])]
