"""The demo as a user runs it, in a process of its own: on real flights, killed in the middle, compared with pandas."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from datetime import datetime
from pathlib import Path

import pandas as pd
import pytest

from examples.flights import data
from examples.flights.__main__ import main
from tests.support.flights import check_accounts, check_windows, settings

ROOT = Path(__file__).parents[2]


def start_demo(out: Path, **settings: str) -> "subprocess.Popen[str]":
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("DEMO_", "SPARK_"))}
    return subprocess.Popen(
        [sys.executable, "-m", "examples.flights"],
        cwd=ROOT,
        env=environment | {"DEMO_OUT": str(out)} | settings,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def finish(demo: "subprocess.Popen[str]") -> str:
    """What a demo printed until its good end."""
    printed, _ = demo.communicate(timeout=500)
    assert demo.returncode == 0, printed
    return printed


def test_killed_in_the_middle_it_ends_as_if_nothing_had_happened(tmp_path: Path) -> None:
    """With every destination declared, idleness off and a lag over the worst disorder, the result is pandas' own."""
    out = tmp_path / "demo"
    run = {"DEMO_DAYS": "1", "DEMO_LAG_MINUTES": "120", "DEMO_IDLE_BATCHES": "0"}
    demo = start_demo(out, **run)
    batches = out / "state" / "batches"
    deadline = time.monotonic() + 200
    while len(list(batches.glob("batch-*.json"))) < 8:
        assert demo.poll() is None, demo.communicate()[0]
        assert time.monotonic() < deadline, "the demo does not get on"
        time.sleep(0.05)
    demo.send_signal(signal.SIGKILL)
    demo.wait()
    assert demo.stdout is not None
    demo.stdout.close()
    assert not (out / "summary.json").exists()

    printed = finish(start_demo(out, **run))
    assert "Going on with the run that did not end" in printed
    flights = data.load(settings(out, 1)).flights
    summary = check_accounts(out, flights)
    assert (summary["late"], summary["null_event_time"]) == (0, 0)
    check_windows(out, flights)
    assert not (out / "unfinished.json").exists()


def test_with_its_defaults_it_shows_what_spark_alone_loses(tmp_path: Path) -> None:
    """The same lag: a handful of rows late here, a quarter lost there."""
    out = tmp_path / "demo"
    printed = finish(start_demo(out, DEMO_DAYS="1"))
    flights = data.load(settings(out, 1)).flights
    summary = check_accounts(out, flights)
    assert summary["late"] <= 20
    assert 0.2 <= summary["native_lost"] / summary["rows"] <= 0.3
    max_event_time: datetime | None = None
    late = 0
    for taken_off in flights["departed_at"]:
        max_event_time = taken_off if max_event_time is None else max(max_event_time, taken_off)
        late += taken_off < max_event_time - pd.Timedelta(minutes=30)
    assert summary["late_under_global_maximum"] == late
    for shown in ("watermark", "held by", "lost by Spark's own watermark", "held longest by"):
        assert shown in printed
    assert Counter(line.split()[0] for line in printed.splitlines() if line.startswith("  batch"))["batch"] >= 3


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("DEMO_START", "2014-06-01", "the data has landings from 2013-01-01"),
        ("DEMO_START", "yesterday", "DEMO_START must be a date"),
        ("DEMO_DAYS", "0", "DEMO_DAYS must be a whole number from 1"),
        ("DEMO_LAG_MINUTES", "-1", "DEMO_LAG_MINUTES must be a whole number from 0"),
        ("DEMO_BATCH_HOURS", "x", "DEMO_BATCH_HOURS must be"),
        ("DEMO_IDLE_BATCHES", "1.5", "DEMO_IDLE_BATCHES must be"),
    ],
)
def test_a_run_that_cannot_be_is_one_clear_line(
    name: str,
    value: str,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """And nothing of the last run is touched."""
    out = tmp_path / "demo"
    monkeypatch.setenv("DEMO_OUT", str(out))
    monkeypatch.setenv(name, value)
    assert main() == 2
    told = capsys.readouterr().err
    assert says in told
    assert len(told.splitlines()) == 1
    assert not out.exists()


def test_a_folder_with_something_else_in_it_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A mistyped DEMO_OUT must not cost anybody their files."""
    (tmp_path / "thesis.tex").write_text("")
    monkeypatch.setenv("DEMO_OUT", str(tmp_path))
    assert main() == 2
    assert "holds something else" in capsys.readouterr().err
    assert (tmp_path / "thesis.tex").exists()
