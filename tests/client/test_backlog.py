"""The backlog: the coordinator gets every batch that it missed, in order."""

import json
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.support.drivers import on_files
from tests.support.waiting import until
from tidegate_spark import connect
from tidegate_spark.errors import CoordinatorUnavailable
from tidegate_spark.protocol.backlog import Backlog, BacklogBatch
from tidegate_spark.protocol.calls import QueryCalls
from tidegate_spark.protocol.checkpoint import Checkpoint
from tidegate_spark.protocol.effects import Effect, Pause, Procedure, run
from tidegate_spark.protocol.evidence import ProcessingTime
from tidegate_spark.protocol.fold import Fold
from tidegate_spark.protocol.pinned_watermarks import StoredPinnedWatermark
from tidegate_spark.protocol.retry import ONE_ATTEMPT, RetryPolicy
from tidegate_spark.protocol.session import DriverSession, perform_on_files
from tidegate_spark.protocol.settings import QuerySettings

FOLD = Fold(["a"], [5], [1], [0], [0], [0], [0])


class Receiver:
    """A stand-in for the coordinator that receives every batch except the batch ``away_at``."""

    def __init__(self, away_at: int | None = None) -> None:
        self.received: list[int] = []
        self.away_at = away_at

    def __call__(self, batch: BacklogBatch, since: ProcessingTime, policy: RetryPolicy) -> Procedure[None]:
        yield Pause(0)
        if batch.batch_id == self.away_at:
            raise CoordinatorUnavailable("away")
        self.received.append(batch.batch_id)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    """Return a checkpoint with the batches 10, 9 and 2 in its backlog, written in this order."""
    checkpoint = Checkpoint(str(tmp_path))
    for batch_id in (10, 9, 2):
        on_files(checkpoint, BacklogBatch(batch_id, StoredPinnedWatermark(None, None), 0.0, None, FOLD).save())
    return checkpoint


def flush(checkpoint: Checkpoint, receiver: Receiver) -> bool:
    settings = QuerySettings(connect("http://127.0.0.1:1", job="j").connection, "q")
    backlog = Backlog(QueryCalls(settings, "run"), receiver, in_background=False)

    def perform(effect: Effect) -> Any:
        return False if isinstance(effect, Pause) else perform_on_files(checkpoint, effect)

    return run(backlog.flush(ONE_ATTEMPT), perform)


def test_batches_are_reported_in_their_order(checkpoint: Checkpoint) -> None:
    """Batches are reported by ascending id. A begin commits the previous batch, so an older batch would be refused."""
    receiver = Receiver()
    assert flush(checkpoint, receiver)
    assert (receiver.received, checkpoint.batches("backlog")) == ([2, 9, 10], [])


def test_a_batch_stays_in_the_backlog_until_the_coordinator_has_it(checkpoint: Checkpoint) -> None:
    """If a flush fails, the next one reports the remaining batches."""
    receiver = Receiver(away_at=9)
    with pytest.raises(CoordinatorUnavailable):
        flush(checkpoint, receiver)
    assert (receiver.received, checkpoint.batches("backlog")) == ([2], [9, 10])
    receiver.away_at = None
    assert flush(checkpoint, receiver)
    assert receiver.received == [2, 9, 10]


def test_a_batch_of_an_earlier_version_may_have_other_members() -> None:
    """Documents in a checkpoint outlive a release: earlier versions wrote the rule by which rows were classified."""
    assert Fold.stored(json.loads(json.dumps(asdict(FOLD) | {"rule": "row"}))) == FOLD


@pytest.mark.parametrize("stopped", [False, True])
def test_a_stopped_query_leaves_its_backlog_to_its_next_run(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch, stopped: bool
) -> None:
    """A stopped run reports nothing, because its begin would fence the run that replaced it."""
    receiver = Receiver()
    monkeypatch.setattr("tidegate_spark.protocol.batches.Batches.report_backlog_batch", receiver)
    job = connect("http://127.0.0.1:1", job="j", on_outage="continue")
    session = DriverSession(QuerySettings(job.connection, "q"), checkpoint)
    session.stop_when(lambda: stopped)
    session.run(session.protocol.backlog.flush_in_background())
    until(
        lambda: not any(thread.name == "tidegate-backlog" for thread in threading.enumerate()), "the thread has ended"
    )
    assert (receiver.received, checkpoint.batches("backlog")) == (([], [2, 9, 10]) if stopped else ([2, 9, 10], []))
