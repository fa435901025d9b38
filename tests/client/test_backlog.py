"""The backlog: the coordinator gets every batch that it missed, in order."""

import threading
from pathlib import Path

import pytest

from tests.support.waiting import until
from tidegate_spark import teller as telling
from tidegate_spark.backlog import Backlog, Untold
from tidegate_spark.checkpoint import Checkpoint
from tidegate_spark.coordinator import Coordinator, Moment
from tidegate_spark.errors import CoordinatorUnavailable
from tidegate_spark.fold import Fold
from tidegate_spark.logs import QueryLog
from tidegate_spark.outage import ONE_ATTEMPT, Patience
from tidegate_spark.pinned_watermarks import StoredPinnedWatermark
from tidegate_spark.teller import Teller

FOLD = Fold("by row", ["a"], [5], [1], [0], [0], [0], [0])


class Listener:
    """Receives batches in place of the coordinator; ``away_at`` is a batch that it does not receive."""

    def __init__(self, away_at: int | None = None) -> None:
        self.received: list[int] = []
        self.away_at = away_at

    def __call__(self, untold: Untold, since: Moment, patience: Patience) -> None:
        if untold.batch_id == self.away_at:
            raise CoordinatorUnavailable("away")
        self.received.append(untold.batch_id)


@pytest.fixture
def backlog(tmp_path: Path) -> Backlog:
    """The batches 10, 9 and 2, written in this order."""
    kept = Backlog(Checkpoint(str(tmp_path)))
    for batch_id in (10, 9, 2):
        kept.write(Untold(batch_id, StoredPinnedWatermark(None, None), 0.0, None, FOLD))
    return kept


def teller(backlog: Backlog, listener: Listener, *, in_background: bool = False, stopped: bool = False) -> Teller:
    coordinator = Coordinator("http://127.0.0.1:1", "j", None, ONE_ATTEMPT)
    coordinator.stopped = lambda: stopped
    return Teller(backlog, coordinator, listener, in_background=in_background, log=QueryLog("j", "q"))


def test_batches_are_told_in_their_order(backlog: Backlog) -> None:
    """A begin commits the batch before it, so an older batch that comes later is refused."""
    listener = Listener()
    assert teller(backlog, listener).tell(ONE_ATTEMPT)
    assert (listener.received, backlog.batches()) == ([2, 9, 10], [])


def test_a_batch_stays_in_the_backlog_until_the_coordinator_has_it(backlog: Backlog) -> None:
    """The driver may end during an outage; its next start tells what is left."""
    listener = Listener(away_at=9)
    with pytest.raises(CoordinatorUnavailable):
        teller(backlog, listener).tell(ONE_ATTEMPT)
    assert (listener.received, backlog.batches()) == ([2], [9, 10])
    listener.away_at = None
    assert teller(backlog, listener).tell(ONE_ATTEMPT)
    assert listener.received == [2, 9, 10]


@pytest.mark.parametrize("stopped", [False, True])
def test_a_stopped_query_leaves_its_backlog_to_its_next_run(
    backlog: Backlog, monkeypatch: pytest.MonkeyPatch, stopped: bool
) -> None:
    """A begin from a run that has ended would fence the run that replaced it."""
    monkeypatch.setattr(telling, "PAUSE_S", 0.01)
    listener = Listener()
    teller(backlog, listener, in_background=True, stopped=stopped).go_on()
    until(lambda: not any(thread.name == "tidegate-teller" for thread in threading.enumerate()), "the thread ended")
    assert (listener.received, backlog.batches()) == (([], [2, 9, 10]) if stopped else ([2, 9, 10], []))
