"""dbt and Dagster load each hour, and load a corrected hour again: the files of docs/how-to/schedulers.md."""

import json
import os
import re
import secrets
import subprocess
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.airflow.loading import HOUR_MS, Loader, at
from tests.support.guides import PAGES
from tests.support.programs import absent
from tidegate_spark.testing import CoordinatorProcess

VENV = Path(sys.prefix) / "schedulers" / "bin"
PAGE = PAGES["how-to/schedulers.md"]
HOUR = at("2013-01-07T10:00:00Z")
TITLED = re.compile(r'^```(?:yaml|sql|python) title="([^"]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)
READ = """
import duckdb, json
with duckdb.connect("flights.duckdb") as db:
    db.execute("SET TimeZone = 'UTC'")
    print(json.dumps(db.sql("SELECT hour::TEXT, dest, flights FROM hourly_flights ORDER BY ALL").fetchall()))
"""


def land(file: str, *flights: tuple[str, str]) -> None:
    """Write a file with flights: the destination, and the time of departure on 7 January 2013 in UTC."""
    dests, times = zip(*flights, strict=True)
    departed = [datetime.fromisoformat(f"2013-01-07T{time}Z") for time in times]
    columns = {"dest": pa.array(dests), "departed_at": pa.array(departed, pa.timestamp("us", "UTC"))}
    Path("departures").mkdir(exist_ok=True)
    pq.write_table(pa.table(columns), Path("departures", file))


def loaded() -> list[Sequence[object]]:
    """Return the rows of the table that the program has loaded."""
    printed = subprocess.check_output([VENV / "python", "-c", READ])
    rows: list[Sequence[object]] = json.loads(printed)
    return rows


@pytest.mark.parametrize("program", ["dbt", "dagster"])
def test_each_hour_is_loaded_and_a_corrected_one_again(
    program: str,
    coordinator: CoordinatorProcess,
    keys: tuple[Path, dict[str, str]],
    http: httpx.Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not (VENV / program).exists():
        absent(f"{program} is not installed: run make test-airflow.")
    monkeypatch.chdir(tmp_path)
    for name, text in TITLED.findall(PAGE):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)
    job = f"flights-{secrets.token_hex(4)}"
    [command] = re.findall(rf"--exec '({program} [^']+)'", PAGE)
    follow = [sys.executable, "-m", "tidegate", "frames", job, "--once", "--as", program]
    environment = {
        **os.environ,
        "PATH": f"{VENV}:{os.environ['PATH']}",
        "TIDEGATE_URL": coordinator.url,
        "TIDEGATE_TOKEN": keys[1]["report"],
        "DO_NOT_TRACK": "1",  # neither program sends statistics
        "DBT_SEND_ANONYMOUS_USAGE_STATS": "false",
    }

    def deliver() -> None:
        done = subprocess.run(
            [*follow, "--exec", f"{command} || kill $PPID"],  # a failure ends the test, and is not tried again
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
        )
        assert "ended with status" not in done.stdout, done.stdout
        assert done.returncode == 0, done.stdout

    loader = Loader(http, job, every="hour")
    land("first.parquet", ("BOS", "10:05:00"), ("HNL", "10:10:00"), ("BOS", "11:10:00"), ("BOS", "12:00:00"))
    loader.finish(HOUR)
    loader.finish(HOUR + HOUR_MS)
    deliver()
    ten = "2013-01-07 10:00:00+00"
    eleven = ["2013-01-07 11:00:00+00", "BOS", 1]
    assert loaded() == [[ten, "BOS", 1], [ten, "HNL", 1], eleven]
    land("late.parquet", ("BOS", "10:59:59"))
    loader.commit("HNL", HOUR + 2 * HOUR_MS + 2000, HOUR + 1000)
    deliver()
    assert loaded() == [[ten, "BOS", 2], [ten, "HNL", 1], eleven]
