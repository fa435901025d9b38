"""The Python on ``docs/spark.md`` runs, from its first line to its last."""

import subprocess
import sys
from pathlib import Path

from tests.support.runs import environment
from tests.support.spark_page import BLOCKS, FILE
from tidegate_spark.testing import CoordinatorProcess


def run(directory: Path, *command: str, **more: str) -> str:
    """What a Python command printed that ended well."""
    ran = subprocess.run(
        [sys.executable, *command], cwd=directory, env=environment(**more), capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_every_snippet_runs(tidegate: CoordinatorProcess, tmp_path: Path) -> None:
    """Whoever copies a line from the page gets what the page says."""
    printed = run(tmp_path, "-m", "tests.support.spark_page", TIDEGATE_URL=tidegate.url)
    assert "metered 1: 3 rows" in printed


def test_the_example_of_a_test_passes(tmp_path: Path) -> None:
    """In a project of its own, with nothing but the two packages."""
    written = [(named.group(1), block) for block in BLOCKS if (named := FILE.match(block))]
    assert [name for name, _ in written] == ["conftest.py", "test_departures.py"]
    for name, block in written:
        (tmp_path / name).write_text(block)
    assert "1 passed" in run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path))
