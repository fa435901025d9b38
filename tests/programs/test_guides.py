"""The Python code of the how-to guides runs."""

import subprocess
import sys
from pathlib import Path

from tests.support.guides import FILES
from tests.support.runs import environment
from tidegate_spark.testing import CoordinatorProcess


def run(directory: Path, *command: str, **more: str) -> str:
    """Run a Python command and return its output; fail if the command fails."""
    ran = subprocess.run(
        [sys.executable, *command], cwd=directory, env=environment(**more), capture_output=True, text=True, timeout=900
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_every_snippet_runs(tidegate: CoordinatorProcess, tmp_path: Path) -> None:
    printed = run(tmp_path, "-m", "tests.support.guides", TIDEGATE_URL=tidegate.url)
    assert "metered 1: 3 rows" in printed


def test_the_example_test_passes(tmp_path: Path) -> None:
    """The example needs only its two files and the two distributions."""
    for name in ("conftest.py", "test_departures.py"):
        (tmp_path / name).write_text(FILES[name])
    assert "1 passed" in run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path))
