"""Waiting for a coordinator: long enough, not for ever, and not for an answer that waiting does not change."""

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark import cloudpickle

from tidegate_spark import connect, outage
from tidegate_spark.backlog import Backlog, Untold
from tidegate_spark.checkpoint import Checkpoint
from tidegate_spark.coordinator import Coordinator
from tidegate_spark.delivery import Delivery
from tidegate_spark.errors import CoordinatorUnavailable, JobMissing, Refused
from tidegate_spark.fold import Fold
from tidegate_spark.outage import ONE_ATTEMPT, NoAnswer, Patience
from tidegate_spark.pinned_watermarks import PinnedWatermarks, StoredPinnedWatermark
from tidegate_spark.reporter import Reporter

QUICK = Patience(5, first_pause_s=0.001, longest_pause_s=0.002)


class Answers:
    """Gives one answer after the other; the last one again and again."""

    def __init__(self, *answers: tuple[int, bytes] | None) -> None:
        self.answers, self.asked = list(answers), 0

    def __call__(self, timeout_s: float) -> tuple[int, bytes]:
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is None:
            raise NoAnswer("connection refused")
        return answer


def test_it_waits_through_an_outage() -> None:
    """A restart of the coordinator must not fail a query."""
    answers = Answers(None, (503, b"{}"), None, (502, b"<html>"), (200, b'{"pinned_watermark": 5}'))
    assert QUICK.call("Begin", answers) == {"pinned_watermark": 5}
    assert answers.asked == 5


def test_it_gives_up_and_says_that_nothing_is_lost() -> None:
    """Whoever is woken by the failed query wants to know whether rows are gone."""
    with pytest.raises(CoordinatorUnavailable, match="Nothing is lost"):
        Patience(0.01, 0.001).call("Begin", Answers(None))


def test_a_refusal_is_not_asked_again() -> None:
    """A fenced run must stop at once."""
    answers = Answers((409, json.dumps({"code": "query_fenced", "detail": "replaced"}).encode()))
    with pytest.raises(Refused, match=r"replaced \[query_fenced, 409\]") as refused:
        QUICK.call("Begin", answers)
    assert (refused.value.code, answers.asked) == ("query_fenced", 1)


@pytest.mark.parametrize(("status", "code"), [(404, "job_not_found"), (410, "job_deleted")])
def test_a_missing_job_is_an_error_of_its_own(status: int, code: str) -> None:
    """The client can create it again."""
    with pytest.raises(JobMissing):
        QUICK.call("Begin", Answers((status, json.dumps({"code": code}).encode())))


def test_an_answer_of_somebody_else_is_shown() -> None:
    """A wrong address often leads to a web server that answers 404 in HTML."""
    with pytest.raises(Refused, match="not the coordinator's"):
        QUICK.call("Begin", Answers((404, b"<html>nginx</html>")))


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of somebody who takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def test_an_attempt_takes_no_longer_than_the_patience(silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator that hangs is as good as away; whoever waits a moment must not wait for half a minute."""
    monkeypatch.setattr(outage, "MOMENT_S", 0.2)
    began = time.monotonic()
    with pytest.raises(CoordinatorUnavailable):
        Coordinator(silent, "j", None, Patience(0)).status()
    reporter = Reporter(silent, "/v1/jobs/j:report", {}, {}, "", Patience(0))
    for _ in range(2):  # also over a connection that is kept
        assert reporter.report([{"substreams": ["a"], "max_event_times": [1]}])[0] is False
    assert time.monotonic() - began < outage.LONGEST_ATTEMPT_S


def test_a_copy_finds_out_anew_what_is_untold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under Spark Connect the hook travels to a server; what the client saw, or could not see, is no answer there."""
    monkeypatch.setattr(outage, "MOMENT_S", 0.2)
    checkpoint = Checkpoint(str(tmp_path))
    job = connect("http://127.0.0.1:1", job="j", on_outage="continue")
    delivery = Delivery(job, "q", (), checkpoint, PinnedWatermarks(checkpoint), "each batch", here=False)
    delivery.start()
    assert delivery.teller.tell(ONE_ATTEMPT)
    (tmp_path / "metadata").write_text('{"id": "checkpoint"}')
    Backlog(checkpoint).write(
        Untold(
            0, StoredPinnedWatermark(None, None), time.time(), None, Fold("by row", ["a"], [5], [1], [0], [0], [0], [0])
        )
    )
    copied = cloudpickle.loads(cloudpickle.dumps(delivery))  # type: ignore[no-untyped-call]
    with pytest.raises(CoordinatorUnavailable):
        copied.teller.tell(ONE_ATTEMPT)
    assert copied.run() == delivery.run()
