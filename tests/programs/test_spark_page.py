"""The Python code of ``docs/spark.md`` runs."""

import subprocess
import sys
from pathlib import Path

from tests.support.runs import environment
from tests.support.spark_page import BLOCKS, FILE
from tidegate_spark.testing import CoordinatorProcess


def run(directory: Path, *command: str, **more: str) -> str:
    """Run a Python command and return its output; fail if the command fails."""
    ran = subprocess.run(
        [sys.executable, *command], cwd=directory, env=environment(**more), capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_every_snippet_runs(tidegate: CoordinatorProcess, tmp_path: Path) -> None:
    printed = run(tmp_path, "-m", "tests.support.spark_page", TIDEGATE_URL=tidegate.url)
    assert "metered 1: 3 rows" in printed


def test_the_example_test_passes(tmp_path: Path) -> None:
    """The example needs only its two files and the two distributions."""
    written = [(named.group(1), block) for block in BLOCKS if (named := FILE.match(block))]
    assert [name for name, _ in written] == ["conftest.py", "test_departures.py"]
    for name, block in written:
        (tmp_path / name).write_text(block)
    assert "1 passed" in run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path))
