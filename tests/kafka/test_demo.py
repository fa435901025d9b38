"""The demo with a Kafka broker: killed halfway, continued, and compared with pandas."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.flights import EXACT, check_accounts, check_windows, replayed
from tests.support.kafka import is_ready, without_maven
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]


def start(out: Path) -> "subprocess.Popen[str]":
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("DEMO_", "SPARK_"))}
    return subprocess.Popen(
        [sys.executable, "-m", "examples.flights"],
        cwd=ROOT,
        env=environment | EXACT | {"DEMO_OUT": str(out), "DEMO_KAFKA": "local"},
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def test_the_flights_from_a_topic_equal_those_of_pandas(tmp_path: Path) -> None:
    if not is_ready():
        pytest.skip(without_maven())
    out = tmp_path / "demo"
    demo = start(out)
    batches = out / "state" / "batches"
    until(lambda: demo.poll() is not None or len(list(batches.glob("batch-*.json"))) >= 1, "a batch is done", 300)
    assert demo.poll() is None, demo.communicate()[0]
    demo.send_signal(signal.SIGKILL)
    demo.communicate()

    demo = start(out)
    printed, _ = demo.communicate(timeout=500)
    assert demo.returncode == 0, printed
    assert "Continuing the unfinished run" in printed
    flights = replayed(out, 1)
    summary = check_accounts(out, flights)
    assert summary["null_event_time"] == 0
    check_windows(out, flights)
