"""The programs of the guides on tables run as they are written, except for the download of the jars."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.guides import FILES, flight
from tests.support.runs import environment
from tidegate_spark.testing import CoordinatorProcess, FileBatches


@pytest.fixture
def jars(spark: SparkSession) -> str:
    return spark.sparkContext.getConf().get("spark.jars") or ""


def run(directory: Path, name: str, jars: str, url: str) -> str:
    """Run a program of a guide in a folder, and return what it prints."""
    program, replaced = re.subn(r'"spark\.jars\.packages", "[^"]+"', f'"spark.jars", "{jars}"', FILES[name])
    assert replaced == (0 if name.startswith("read_") else 1)
    (directory / name).write_text(program)
    ran = subprocess.run(
        [sys.executable, name],
        cwd=directory,
        env=environment(TIDEGATE_URL=url),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_write_and_read_tables(tidegate: CoordinatorProcess, tmp_path: Path, jars: str) -> None:
    landings = FileBatches(tmp_path / "landings", "")
    landings.add(*(flight(dest, f"2013-01-01T{hour:02}:15:00Z") for hour in range(8, 12) for dest in ("BOS", "HNL")))
    landings.add(*(flight(dest, "2013-01-01T12:00:00Z") for dest in ("BOS", "HNL")))
    for name in ("write_delta.py", "write_iceberg.py"):
        run(tmp_path, name, jars, tidegate.url)
    landings.add(
        *(flight(dest, "2013-01-01T13:00:00Z") for dest in ("BOS", "HNL")), flight("HNL", "2013-01-01T08:00:00Z")
    )
    for name in ("write_delta.py", "write_iceberg.py"):
        run(tmp_path, name, jars, tidegate.url)
    printed = run(tmp_path, "read_tables.py", jars, tidegate.url).splitlines()
    assert printed == ["10 flights before 2013-01-01 12:30:00+00:00", "[('BOS', 1), ('HNL', 1)]"]
    shown = subprocess.run(
        [sys.executable, "-m", "tidegate", "table", "lake/departures"], cwd=tmp_path, capture_output=True, text=True
    )
    assert re.fullmatch(
        r"Version \d+ has all rows on time below 2013-01-01 12:30:00 UTC \(1357043400000\) of job departures\.\n",
        shown.stdout,
    ), shown
    late = subprocess.run(
        [sys.executable, "-m", "tidegate", "table", "lake/late"], cwd=tmp_path, capture_output=True, text=True
    )
    assert late.returncode == 1
    assert late.stderr.startswith(
        "tidegate: No job has claimed anything in lake/late. batch.write_once() writes the claim"
    )
