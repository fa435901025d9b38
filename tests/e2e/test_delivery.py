"""One run's talk with a real coordinator, without Spark: schedules that a query meets once in years."""

import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle

from tests.support.api import operate
from tests.support.streams import LAG, Backup, kill, known
from tests.support.waiting import until
from tidegate_spark import Gate, limiting_lag, outage
from tidegate_spark.checkpoint import Checkpoint
from tidegate_spark.delivery import Delivery, Opened, Settles
from tidegate_spark.fold import Fold
from tidegate_spark.pins import Pins
from tidegate_spark.testing import CoordinatorProcess


def fold(**tops: int) -> Fold:
    names = list(tops)
    none = [0] * len(names)
    return Fold("by row", names, list(tops.values()), [1] * len(names), none, none, none, none)


class Runs:
    """The runs of a query on one checkpoint, as Spark would start them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir()
        (directory / "metadata").write_text('{"id": "checkpoint"}')

    def plan(self, batch_id: int) -> None:
        """As Spark does before it gives a batch to its function."""
        (self.directory / "offsets").mkdir(exist_ok=True)
        planned = self.directory / "offsets" / str(batch_id)
        if not planned.exists():
            planned.write_text(f'v1\n{{"batchTimestampMs": {int(1000 * time.time()) + 1}}}\n-')

    def run(self, gate: Gate, query: str = "q", settles: Settles = "each batch", here: bool = True) -> "Run":
        checkpoint = Checkpoint(str(self.directory))
        delivery = Delivery(gate, query, (), checkpoint, Pins(checkpoint), settles, here)
        return Run(self, delivery)


class Run:
    """One of them."""

    def __init__(self, runs: Runs, delivery: Delivery) -> None:
        self.runs, self.delivery = runs, delivery

    def begin(self, batch_id: int) -> Opened:
        self.runs.plan(batch_id)
        return self.delivery.begin(batch_id)

    def batch(self, batch_id: int, **tops: int) -> Opened:
        opened = self.begin(batch_id)
        self.delivery.report(opened, fold(**tops))
        self.delivery.commit(opened, fold(**tops))
        return opened

    def beat(self, after_batch: int | None, age_s: float = 0.0) -> None:
        self.delivery.heartbeat(self.delivery.run(), age_s, after_batch)


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path / "checkpoint")


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outage, "MOMENT_S", 0.3)


def job(own: CoordinatorProcess, **limits: Any) -> Gate:
    return own.gate(job="j", rules=limiting_lag(LAG, **limits))


@pytest.mark.usefixtures("soon")
def test_an_outage_may_be_longer_than_pins_are_kept(own: CoordinatorProcess, runs: Runs) -> None:
    """What is untold brings its own pin; a query that asked for a forgotten one would fail for ever."""
    gate = own.gate(job="j", rules=limiting_lag(LAG), on_outage="continue")
    run = runs.run(gate)
    run.delivery.start()
    run.batch(0, a=1_000_000)
    own.stop()
    for batch_id in range(1, 120):
        run.batch(batch_id, a=1_000_000 + batch_id)
    own.start()
    until(lambda: gate.status()["watermark"] == 990_119, "all of it was told")
    assert run.batch(120, a=1_000_500).kept.pin == 990_119
    assert gate.status()["rows"]["on_time"] == 121


def test_reports_in_the_lost_end_of_the_log_are_reported_again(
    own: CoordinatorProcess, runs: Runs, tmp_path: Path
) -> None:
    """The batch itself is known to the coordinator, and nothing staged: a commit of nothing would lose it."""
    gate = job(own)
    run = runs.run(gate)
    run.delivery.start()
    run.batch(0, a=100_000)
    opened = run.begin(1)
    backup = Backup(own, tmp_path / "backup")
    run.delivery.report(opened, fold(a=200_000, b=100_000))
    backup.restore()
    run.delivery.commit(opened, fold(a=200_000, b=100_000))
    assert known(gate) == {"a": 200_000, "b": 100_000}
    run.batch(2, a=300_000)
    assert run.begin(3).kept.pin == 90_000


def test_what_is_told_again_in_many_calls_lets_nobody_pass(own: CoordinatorProcess, runs: Runs) -> None:
    """Between two of them the coordinator looks; who holds the watermark must be in the first."""
    gate = job(own)
    run = runs.run(gate)
    run.delivery.start()
    run.batch(0, **{f"s{number:05}": 1_000_000 for number in range(12_000)}, z=500_000)
    assert gate.status()["watermark"] == 490_000
    kill(own, empties=True)
    own.start()
    run = runs.run(gate)
    run.delivery.start()
    assert run.begin(1).kept.pin == 490_000


@pytest.mark.parametrize("first", ["a batch", "a heartbeat"])
def test_the_last_watermark_that_was_told_is_proven_by_the_next_run(
    own: CoordinatorProcess, runs: Runs, first: str
) -> None:
    """Its token lies beside the checkpoint, and goes out with whatever is said first."""
    gate = job(own)
    run = runs.run(gate)
    run.delivery.start()
    run.batch(0, a=100_000, b=40_000)
    operate(gate, "POST", "/substreams:evict", {"query": "q", "names": ["b"], "reason": "gone"})
    run.batch(1, a=101_000)
    assert gate.status()["watermark"] == 91_000
    kill(own, empties=True)
    own.start()
    run = runs.run(gate)
    run.delivery.start()
    if first == "a heartbeat":
        run.beat(1)
        assert gate.status()["watermark"] == 91_000
    assert run.begin(2).kept.pin == 91_000


def test_a_job_that_was_reset_while_its_query_is_quiet_stays_clean(own: CoordinatorProcess, runs: Runs) -> None:
    """The reset is the way out of a false event time; the next heartbeat would bar it."""
    gate = job(own, max_future_skew=None)
    run = runs.run(gate)
    run.delivery.start()
    run.batch(0, a=10**15)
    operate(gate, "POST", ":reset", {"reason": "a clock was broken"})
    for _ in range(2):
        run.beat(0)
    assert (gate.status()["watermark"], known(gate)) == (None, {})
    run.batch(1, a=100_000)
    run = runs.run(gate)
    run.delivery.start()
    run.beat(1)
    assert (gate.status()["watermark"], known(gate)) == (90_000, {"a": 100_000})


def test_a_coordinator_may_lose_everything_twice(own: CoordinatorProcess, runs: Runs) -> None:
    """Also while nothing comes in between that would be written down."""
    gate = job(own, idle_timeout=timedelta(seconds=1))
    run = runs.run(gate)
    run.delivery.start()
    run.batch(0, a=100_000, b=40_000)
    for _ in range(2):
        kill(own, empties=True)
        own.start()
        run.delivery.coordinator.watermark_token = None  # as without a fixed secret

        def silent() -> bool:
            run.beat(0)
            return bool(gate.status()["watermark"] == 90_000)

        until(silent, "its silence is believed again")


def test_what_is_to_be_told_again_outlives_a_failed_batch(own: CoordinatorProcess, runs: Runs, tmp_path: Path) -> None:
    """The run that found out staged it; the next one takes the batch over, and what was staged is dropped."""
    gate = job(own)
    run = runs.run(gate)
    run.delivery.start()
    run.batch(0, a=100_000)
    backup = Backup(own, tmp_path / "backup")
    run.batch(1, a=101_000, b=50_000)
    backup.restore()
    run.begin(2)
    run = runs.run(gate)
    run.delivery.start()
    run.batch(2, a=120_000)
    assert known(gate) == {"a": 120_000, "b": 50_000}


def test_a_rename_is_no_loss(own: CoordinatorProcess, runs: Runs) -> None:
    """The coordinator never knew a batch under the new name; what was evicted under the old one stays away."""
    gate = job(own)
    run = runs.run(gate, "old")
    run.delivery.start()
    run.batch(0, a=100_000, b=40_000)
    operate(gate, "POST", "/substreams:evict", {"query": "old", "names": ["b"], "reason": "gone"})
    run.batch(1, a=110_000)
    gate.hand_over("old", "new", "renamed")
    run = runs.run(gate, "new")
    run.delivery.start()
    run.batch(2, a=120_000)
    assert known(gate) == {"a": 120_000}


@pytest.mark.usefixtures("soon")
def test_under_connect_the_hooks_waiting_is_its_own(own: CoordinatorProcess, runs: Runs) -> None:
    """The client's process has started the run; were it to tell the backlog, its waiting would hide the hook's."""
    gate = own.gate(job="j", rules=limiting_lag(LAG, idle_timeout=timedelta(seconds=3)), on_outage="continue")
    earlier = runs.run(gate)
    earlier.delivery.start()
    earlier.batch(0, a=100_000, b=40_000)
    own.stop()
    earlier.batch(1, a=101_000)
    earlier.delivery.close()
    time.sleep(3)
    client = runs.run(gate, here=False)
    client.delivery.start()
    hook = Run(runs, cloudpickle.loads(cloudpickle.dumps(client.delivery)))  # type: ignore[no-untyped-call]
    client.delivery.started()
    own.start()
    time.sleep(2)
    hook.batch(2, a=102_000, b=41_000)
    hook.delivery._on_outage = outage.OnOutage.of(timedelta(minutes=1))
    opened = hook.begin(3)
    own.stop()
    threading.Timer(4, own.start).start()
    hook.delivery.report(opened, fold(a=103_000))
    hook.delivery.commit(opened, fold(a=103_000))
    hook.batch(4, a=104_000)
    assert gate.status()["substreams"]["idle"] == 0
    assert gate.status()["watermark"] == 31_000


def test_under_available_now_a_batch_tells_of_the_time_up_to_the_runs_start(
    own: CoordinatorProcess, runs: Runs
) -> None:
    """Spark settles what there is as the run starts: what came later is in none of its batches."""
    gate = job(own, idle_timeout=timedelta(seconds=2))
    run = runs.run(gate, settles="the run")
    run.delivery.start()
    run.batch(0, a=100_000, b=40_000)
    time.sleep(2.5)
    run.batch(1, a=110_000)
    assert gate.status()["watermark"] == 30_000
    run = runs.run(gate, settles="the run")
    run.delivery.start()
    run.batch(2, a=120_000)  # starts with all of the time in between
    assert gate.status()["watermark"] == 110_000


def test_an_earlier_run_under_available_now_is_not_known_about(own: CoordinatorProcess, runs: Runs) -> None:
    """What it left planned was settled as it started, whenever that was."""
    gate = job(own, idle_timeout=timedelta(seconds=1))
    run = runs.run(gate, settles="the run")
    run.delivery.start()
    run.batch(0, a=100_000, b=40_000)
    time.sleep(1.5)
    runs.plan(1)
    time.sleep(0.1)
    run = runs.run(gate, settles="the run")
    run.delivery.start()
    run.batch(1, a=110_000)
    assert gate.status()["watermark"] == 30_000


def test_waiting_for_another_thread_is_nobodys_silence(own: CoordinatorProcess, runs: Runs) -> None:
    """A heartbeat that is under way keeps a begin waiting; its input is as old as it was."""
    gate = job(own, idle_timeout=timedelta(seconds=2))
    run = runs.run(gate)
    run.delivery.start()
    run.batch(0, a=100_000, b=40_000)
    lock, inside = run.delivery._standing.lock, threading.Event()

    def hold() -> None:
        with lock:
            inside.set()
            time.sleep(3)

    holding = threading.Thread(target=hold)
    holding.start()
    inside.wait()
    run.batch(1, a=110_000)
    holding.join()
    assert gate.status()["substreams"]["idle"] == 0
