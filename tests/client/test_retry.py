"""Waiting for a coordinator: long enough, not for ever, and not for an answer that waiting does not change."""

import json
import socket
import time
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle

from tests.support.drivers import on_files
from tidegate_spark import connect
from tidegate_spark.clock import SYSTEM_CLOCK
from tidegate_spark.errors import CoordinatorUnavailable, JobMissing, Refused
from tidegate_spark.protocol import retry
from tidegate_spark.protocol.backlog import BacklogBatch
from tidegate_spark.protocol.checkpoint import Checkpoint
from tidegate_spark.protocol.effects import Effect, NoAnswer, Pause, Request, Response, Send, run
from tidegate_spark.protocol.files import StoredPinnedWatermark
from tidegate_spark.protocol.fold import Fold
from tidegate_spark.protocol.reporter import Reporter
from tidegate_spark.protocol.retry import ONE_ATTEMPT, RetryPolicy, call
from tidegate_spark.protocol.session import DriverSession
from tidegate_spark.protocol.settings import QuerySettings

QUICK = RetryPolicy(5, first_pause_s=0.001, longest_pause_s=0.002)


class Answers:
    """Gives one answer after the other; the last one again and again."""

    def __init__(self, *answers: tuple[int, bytes] | None) -> None:
        self.answers, self.asked = list(answers), 0

    def __call__(self, effect: Effect) -> Any:
        if isinstance(effect, Pause):
            time.sleep(effect.seconds)
            return False
        assert isinstance(effect, Send)
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is None:
            raise NoAnswer("connection refused")
        return Response(*answer)


def begin(answers: Answers, policy: RetryPolicy = QUICK) -> dict[str, Any]:
    """Call the coordinator that gives these answers."""
    return run(call("Begin", partial(Request, "PUT", "/"), policy, SYSTEM_CLOCK), answers)


def test_it_waits_through_an_outage() -> None:
    """A restart of the coordinator must not fail a query."""
    answers = Answers(None, (503, b"{}"), None, (502, b"<html>"), (200, b'{"pinned_watermark": 5}'))
    assert begin(answers) == {"pinned_watermark": 5}
    assert answers.asked == 5


def test_it_gives_up_and_says_that_nothing_is_lost() -> None:
    """Whoever is woken by the failed query wants to know whether rows are gone."""
    with pytest.raises(CoordinatorUnavailable, match="Nothing is lost"):
        begin(Answers(None), RetryPolicy(0.01, 0.001))


def test_a_refusal_is_not_asked_again() -> None:
    """A fenced run must stop at once."""
    answers = Answers((409, json.dumps({"code": "query_fenced", "detail": "replaced"}).encode()))
    with pytest.raises(Refused, match=r"replaced \[query_fenced, 409\]") as refused:
        begin(answers)
    assert (refused.value.code, answers.asked) == ("query_fenced", 1)


@pytest.mark.parametrize(("status", "code"), [(404, "job_not_found"), (410, "job_deleted")])
def test_a_missing_job_is_an_error_of_its_own(status: int, code: str) -> None:
    """The client can create it again."""
    with pytest.raises(JobMissing):
        begin(Answers((status, json.dumps({"code": code}).encode())))


def test_an_answer_of_somebody_else_is_shown() -> None:
    """A wrong address often leads to a web server that answers 404 in HTML."""
    with pytest.raises(Refused, match="not the coordinator's"):
        begin(Answers((404, b"<html>nginx</html>")))


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of somebody who takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def test_an_attempt_takes_no_longer_than_the_policy_allows(silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator that hangs is as good as away; whoever waits a moment must not wait for half a minute."""
    monkeypatch.setattr(retry, "SHORT_WAIT_S", 0.2)
    began = time.monotonic()
    with pytest.raises(CoordinatorUnavailable):
        connect(silent, job="j", on_outage=timedelta(0)).status()
    reporter = Reporter(silent, "/v1/jobs/j:report", {}, {}, "", RetryPolicy(0))
    for _ in range(2):  # also over a connection that is kept
        assert reporter.report([{"substreams": ["a"], "max_event_times": [1]}])[0] is False
    assert time.monotonic() - began < retry.LONGEST_ATTEMPT_S


def test_a_copy_reads_the_backlog_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under Spark Connect the hook travels to a server; what the client's process could read is not known there."""
    monkeypatch.setattr(retry, "SHORT_WAIT_S", 0.2)
    checkpoint = Checkpoint(str(tmp_path))
    job = connect("http://127.0.0.1:1", job="j", on_outage="continue")
    session = DriverSession(QuerySettings(job.connection, "q"), checkpoint, owns_files=False)
    session.run(session.protocol.start())
    assert session.run(session.backlog.flush(ONE_ATTEMPT))
    (tmp_path / "metadata").write_text('{"id": "checkpoint"}')
    fold = Fold("by row", ["a"], [5], [1], [0], [0], [0], [0])
    on_files(checkpoint, BacklogBatch(0, StoredPinnedWatermark(None, None), time.time(), None, fold).save())
    copied: DriverSession = cloudpickle.loads(cloudpickle.dumps(session))  # type: ignore[no-untyped-call]
    with pytest.raises(CoordinatorUnavailable):
        copied.run(copied.backlog.flush(ONE_ATTEMPT))
    assert copied.run_id == session.run_id
