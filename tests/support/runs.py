"""Starting the pipeline, and reading what it left."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.pipeline import Settings
from tidegate_spark.testing import ensure_java

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 240


def environment(**more: str) -> dict[str, str]:
    """For processes with a Spark of their own: the same Java and Python, quiet, and nothing beyond loopback."""
    ensure_java()
    # Without what the demo, or a Spark of this process, has put there for itself: a log that shows errors only.
    own = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    return {**own, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(ROOT), **more}


def run(settings: Settings) -> int:
    """Runs the pipeline to its end, good or bad; returns its exit status."""
    (Path(settings.directory) / "out").mkdir(exist_ok=True)
    log = Path(settings.directory) / "pipeline.log"
    with open(log, "a") as told:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.pipeline", settings.argument()],
            cwd=settings.directory, env=environment(), stdout=told, stderr=told, start_new_session=True,
        )  # fmt: skip
        try:
            return process.wait(TIMEOUT_S)
        finally:
            process.kill()


@dataclass(frozen=True)
class Call:
    """One call of one of the pipeline's functions."""

    kind: str
    batch: int
    pin: int | None
    replayed: bool
    rows: list[Any]


def calls(directory: Path) -> list[Call]:
    """All calls, in their order."""
    found = []
    for path in (directory / "out").glob("*.json"):
        kind, _, order, *_ = path.stem.split("-")
        found.append((int(order), Call(kind=kind, **json.loads(path.read_text()))))
    return [call for _, call in sorted(found, key=lambda pair: pair[0])]
