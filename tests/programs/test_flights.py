"""The demo in its own process, as a user runs it: with real flights, killed halfway, and compared with pandas."""

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

from examples.flights.__main__ import main
from tests.support.flights import check_accounts, check_windows, replayed

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
    """Return the output of a demo; fail if the demo fails."""
    printed, _ = demo.communicate(timeout=500)
    assert demo.returncode == 0, printed
    return printed


def test_a_killed_demo_continues_with_the_same_result(tmp_path: Path) -> None:
    """Every destination is declared, idleness is off, and the lag exceeds the worst disorder. So the windows equal
    those of pandas.
    """
    out = tmp_path / "demo"
    run = {"DEMO_DAYS": "1", "DEMO_LAG_MINUTES": "120", "DEMO_IDLE_BATCHES": "0"}
    demo = start_demo(out, **run)
    batches = out / "state" / "batches"
    deadline = time.monotonic() + 200
    while len(list(batches.glob("batch-*.json"))) < 8:
        assert demo.poll() is None, demo.communicate()[0]
        assert time.monotonic() < deadline, "the demo did not reach batch 8 within 200 s"
        time.sleep(0.05)
    demo.send_signal(signal.SIGKILL)
    demo.wait()
    assert demo.stdout is not None
    demo.stdout.close()
    assert not (out / "summary.json").exists()

    printed = finish(start_demo(out, **run))
    assert "Continuing the unfinished run" in printed
    flights = replayed(out, 1)
    summary = check_accounts(out, flights)
    # At the last batch, some destinations have not landed yet, so the flight that is recorded last is on time.
    assert (summary["late"], summary["null_event_time"]) == (0, 0)
    check_windows(out, flights)
    assert not (out / "unfinished.json").exists()


def test_the_defaults_show_the_loss_of_sparks_own_watermark(tmp_path: Path) -> None:
    """With the same lag, the demo has at most 20 late rows, and Spark's own watermark loses a quarter of all rows."""
    out = tmp_path / "demo"
    printed = finish(start_demo(out, DEMO_DAYS="1"))
    flights = replayed(out, 1)
    summary = check_accounts(out, flights)
    assert summary["late"] <= 20
    assert 0.2 <= summary["native_lost"] / summary["rows"] <= 0.3
    max_event_time: datetime | None = None
    late = 0
    for taken_off in flights["departed_at"]:
        max_event_time = taken_off if max_event_time is None else max(max_event_time, taken_off)
        late += taken_off < max_event_time - pd.Timedelta(minutes=30)
    assert summary["late_under_global_maximum"] == late
    corrected = [line for line in printed.splitlines() if line.startswith("2013-01-01 05:00")]
    assert [line.split()[2:] for line in corrected] == [["complete", "2", "16", "1"]]
    assert "; 1 corrected" in printed
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
def test_an_invalid_setting_is_refused_in_one_line(
    name: str,
    value: str,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The output of the last run stays unchanged."""
    out = tmp_path / "demo"
    monkeypatch.setenv("DEMO_OUT", str(out))
    monkeypatch.setenv(name, value)
    assert main() == 2
    message = capsys.readouterr().err
    assert says in message
    assert len(message.splitlines()) == 1
    assert not out.exists()


def test_a_folder_with_other_files_is_not_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A mistyped DEMO_OUT must not delete other files."""
    (tmp_path / "thesis.tex").write_text("")
    monkeypatch.setenv("DEMO_OUT", str(tmp_path))
    assert main() == 2
    assert "contains other files" in capsys.readouterr().err
    assert (tmp_path / "thesis.tex").exists()
