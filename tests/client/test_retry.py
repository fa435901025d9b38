"""Retries of calls to the coordinator: their pauses, their end, and answers that end them."""

import json
import logging
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle

from tests.support.clock import VirtualClock
from tests.support.drivers import on_files
from tidegate_spark import connect
from tidegate_spark.clock import SYSTEM_CLOCK
from tidegate_spark.errors import CoordinatorUnavailable, JobMissing, Refused, TidegateError
from tidegate_spark.protocol import retry
from tidegate_spark.protocol.backlog import BacklogBatch
from tidegate_spark.protocol.checkpoint import Checkpoint
from tidegate_spark.protocol.effects import Effect, NoAnswer, Pause, Response, Send, run
from tidegate_spark.protocol.fold import Fold
from tidegate_spark.protocol.pinned_watermarks import StoredPinnedWatermark
from tidegate_spark.protocol.reporter import Reporter
from tidegate_spark.protocol.retry import ONE_ATTEMPT, RetryPolicy, call
from tidegate_spark.protocol.session import DriverSession
from tidegate_spark.protocol.settings import QuerySettings

QUICK = RetryPolicy(5, first_pause_s=0.001, longest_pause_s=0.002)


class Answers:
    """A coordinator that returns the given answers in order and repeats the last one."""

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
    """Begin a batch at a coordinator that gives these answers."""
    return run(call("Begin", partial(Send, "PUT", "/", None, {}), policy, SYSTEM_CLOCK), answers)


def test_a_call_is_repeated_during_an_outage() -> None:
    """A call is repeated until the outage ends."""
    answers = Answers(None, (503, b"{}"), None, (502, b"<html>"), (200, b'{"pinned_watermark": 5}'))
    assert begin(answers) == {"pinned_watermark": 5}
    assert answers.asked == 5


def test_the_last_error_says_that_nothing_is_lost() -> None:
    """The error at the end of the retries says that no rows are lost."""
    with pytest.raises(CoordinatorUnavailable, match="Nothing is lost"):
        begin(Answers(None), RetryPolicy(0.01, 0.001))


@pytest.mark.parametrize(
    ("status", "retry_after", "at_least_s"),
    [
        (429, "7", 7.0),
        (503, "2", 2.0),
        (503, "Wed, 21 Oct 2015 07:28:00 GMT", 0.0),
        (503, None, 0.0),
        (503, "99", 60.0),
    ],
)
def test_pauses_observe_retry_after(status: int, retry_after: str | None, at_least_s: float) -> None:
    """The pause is at least `Retry-After`, but never longer than the policy allows."""
    procedure = call("Begin", partial(Send, "PUT", "/", None, {}), RetryPolicy(60, 0.1), VirtualClock())
    assert isinstance(next(procedure), Send)
    pause = procedure.send(Response(status, b"{}", retry_after))
    assert isinstance(pause, Pause)
    assert at_least_s <= pause.seconds <= min(at_least_s + 0.1, 60)


def test_the_driver_and_the_executors_observe_retry_after() -> None:
    """The driver and the executors use different HTTP clients. Both observe `Retry-After`."""
    requests = []

    class Busy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append(self.command)
            self.send_response(429)
            self.send_header("Retry-After", "7")
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_POST = do_GET  # noqa: N815 - the name is that of http.server

        def log_message(self, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Busy) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        with pytest.raises(CoordinatorUnavailable):
            connect(url, job="j", on_outage=timedelta(seconds=0.5)).status()
        assert Reporter(url, "/", {}, {}, "", RetryPolicy(0.5)).report([{"substreams": ["a"]}])[0] is False
        server.shutdown()
    assert requests == ["GET", "GET", "POST", "POST"], (
        "each client must pause until its deadline, then make its second attempt"
    )


@pytest.mark.parametrize("status", [None, 200, 302, 401, 404, 500, 503])
def test_no_message_has_the_key(status: int | None, caplog: pytest.LogCaptureFixture) -> None:
    """Logs and tracebacks are sent to other systems, whose readers must not get the key."""
    key = "s3cret"

    class Failing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.headers["Authorization"] == f"Bearer {key}"
            if status is not None:  # None: close the connection without an answer
                self.send_response(status)
                self.send_header("Content-Length", "4")
                self.end_headers()
                self.wfile.write(b"busy")

        do_POST = do_GET  # noqa: N815 - the name is that of http.server

        def log_message(self, *args: Any) -> None:
            pass

    messages: list[str] = []
    with caplog.at_level(logging.DEBUG), ThreadingHTTPServer(("127.0.0.1", 0), Failing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        job = connect(url, job="j", key=key, on_outage=timedelta(seconds=0.1))
        reporter = Reporter(url, "/", job.connection.headers, {}, "", RetryPolicy(0.1))
        calls: list[Callable[[], Any]] = [job.status, job.ensure_job, job.reopen, lambda: next(job.watch())]
        for call_ in calls:
            try:
                call_()
            except TidegateError as error:
                messages += traceback.format_exception(error)
        assert reporter.report([{"substreams": ["a"]}])[0] is False
        server.shutdown()
    request = Send("GET", "/", None, job.connection.headers, 1.0)
    text = "\n".join([*messages, caplog.text, repr(job.connection), repr(reporter), repr(request)])
    assert "127.0.0.1" in text
    assert key not in text


def test_a_refusal_is_not_retried() -> None:
    """A refusal is not retried, so a fenced run stops at once."""
    answers = Answers((409, json.dumps({"code": "query_fenced", "detail": "replaced"}).encode()))
    with pytest.raises(Refused, match=r"replaced \[query_fenced, 409\]") as refused:
        begin(answers)
    assert (refused.value.code, answers.asked) == ("query_fenced", 1)


@pytest.mark.parametrize(("status", "code"), [(404, "job_not_found"), (410, "job_deleted")])
def test_a_missing_job_has_its_own_error(status: int, code: str) -> None:
    """A missing job has its own error, so that the client can create the job."""
    with pytest.raises(JobMissing):
        begin(Answers((status, json.dumps({"code": code}).encode())))


def test_an_answer_of_another_server_is_refused() -> None:
    """A 404 in HTML is refused, because it comes from another web server."""
    with pytest.raises(Refused, match="is not from the coordinator"):
        begin(Answers((404, b"<html>nginx</html>")))


@pytest.fixture
def silent() -> Iterator[str]:
    """Return the address of a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def test_an_attempt_takes_no_longer_than_the_policy_allows(silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call to a silent coordinator ends at the time limit of its policy, before the longest timeout of an attempt."""
    monkeypatch.setattr(retry, "SHORT_WAIT_S", 0.2)
    began = time.monotonic()
    with pytest.raises(CoordinatorUnavailable):
        connect(silent, job="j", on_outage=timedelta(0)).status()
    reporter = Reporter(silent, "/v1/jobs/j:report", {}, {}, "", RetryPolicy(0))
    for _ in range(2):  # the second report uses the open connection
        assert reporter.report([{"substreams": ["a"], "max_event_times": [1]}])[0] is False
    assert time.monotonic() - began < retry.LONGEST_ATTEMPT_S


def test_a_copied_session_reads_the_backlog_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under Spark Connect the hook is copied to a server. The copy reads the backlog from the checkpoint again."""
    monkeypatch.setattr(retry, "SHORT_WAIT_S", 0.2)
    checkpoint = Checkpoint(str(tmp_path))
    job = connect("http://127.0.0.1:1", job="j", on_outage="continue")
    session = DriverSession(QuerySettings(job.connection, "q"), checkpoint, owns_files=False)
    session.run(session.protocol.start())
    assert session.run(session.protocol.backlog.flush(ONE_ATTEMPT))
    (tmp_path / "metadata").write_text('{"id": "checkpoint"}')
    fold = Fold(["a"], [5], [1], [0], [0], [0], [0])
    on_files(checkpoint, BacklogBatch(0, StoredPinnedWatermark(None, None), time.time(), None, fold).save())
    copied: DriverSession = cloudpickle.loads(cloudpickle.dumps(session))  # type: ignore[no-untyped-call]
    with pytest.raises(CoordinatorUnavailable):
        copied.run(copied.protocol.backlog.flush(ONE_ATTEMPT))
    assert copied.run_id == session.run_id
