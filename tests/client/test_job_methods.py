"""The methods of a job that read and change it, against a coordinator."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from threading import Timer
from typing import Any

import httpx
import pytest

from tests.support.api import operate
from tests.support.clock import VirtualClock
from tests.support.drivers import Runs
from tests.support.local import LocalCoordinator
from tidegate_spark import (
    CoordinatorUnavailable,
    InvalidUsage,
    Job,
    JobDeleted,
    JobMissing,
    Refused,
    connect,
    limiting_lag,
)

BASE = 1_357_552_800_000
AT = datetime(2013, 1, 7, 10, tzinfo=UTC)
"""The time BASE."""


@pytest.fixture
def flights(job: Job) -> Job:
    """Return a job in which the substreams ``a`` and ``b`` of no query have reported. The lag is ten seconds."""
    job.ensure_job()
    report(job, a=BASE, b=BASE + 60_000)
    return job


def report(job: Job, **max_event_times: int) -> None:
    body = {"substreams": list(max_event_times), "max_event_times": list(max_event_times.values())}
    operate(job, "POST", ":report", body)


def states(job: Job) -> dict[str, str]:
    return {row["substream"]: row["state"] for row in job.substreams()}


def actions(job: Job) -> list[tuple[str, str]]:
    return [(record["action"], record.get("reason", "")) for record in job.history(kind=["action"])["records"][::-1]]


def test_actions_on_substreams(flights: Job) -> None:
    flights.idle("", ["a"], "slow")
    assert states(flights) == {"a": "idle", "b": "active"}
    assert flights.status()["watermark"] == BASE + 50_000
    flights.evict("", ["a"], "gone")
    assert states(flights) == {"b": "active"}
    flights.done("", ["b"], "ended")
    assert states(flights) == {"b": "done"}
    assert actions(flights) == [("idle", "slow"), ("evict", "gone"), ("done", "ended")]
    with pytest.raises(Refused, match="substream_not_found"):
        flights.idle("", ["b", "c"])
    for act in (flights.idle, flights.evict):
        with pytest.raises(InvalidUsage, match=r"write \['HNL'\]"):
            act("", "HNL")


def test_watermarks_are_restored(job: Job) -> None:
    """A part of a millisecond is rounded down, because the watermark must not be higher than the given time."""
    job.ensure_job()
    job.declare("q", [("HNL", 1), ("HNL", 2)])
    job.restore("q", [("HNL", 1), ("HNL", 2)], [AT + timedelta(microseconds=1999), 5], "moved")
    assert {row["substream"]: row["watermark"] for row in job.substreams()} == {"HNL/1": BASE + 1, "HNL/2": 5}
    assert actions(job)[-1] == ("restore", "moved")


def test_a_time_in_another_unit_is_refused_without_force(job: Job) -> None:
    """Microseconds in place of milliseconds would move the watermark by thousands of years."""
    job.ensure_job()
    job.declare("", ["a"])
    micros = 1000 * BASE
    calls: list[Callable[..., object]] = [
        partial(job.wait, micros, timedelta(0)),
        partial(job.restore, "", ["a"], [micros]),
        partial(job.hold, micros, "audit", duration=timedelta(milliseconds=1)),
        partial(job.complete, up_to=micros),
    ]
    for call in calls:
        with pytest.raises(Refused, match=f"write {BASE}, in milliseconds.*insist with force"):
            call()
    assert calls[0](force=True) is False
    calls[1](force=True)
    assert calls[0](force=True) is True
    assert isinstance(calls[2](force=True), str)


def test_queries_are_handed_over_and_retired(job: Job) -> None:
    job.ensure_job()
    job.declare("old", ["a"])
    job.hand_over("old", "new", "renamed")
    assert [row["query"] for row in job.substreams()] == ["new"]
    job.retire("new", "ended")
    assert job.substreams() == []
    assert actions(job)[1:] == [("hand_over", "renamed"), ("retire", "ended")]
    with pytest.raises(InvalidUsage, match="query 'a/b'"):
        job.retire("a/b")


def test_a_hold_keeps_the_watermark_until_its_release(flights: Job) -> None:
    name = flights.hold(AT, "audit", duration=timedelta(hours=2))
    [hold] = flights.status()["holds"]
    assert (hold["hold"], hold["at_most"], hold["reason"], hold["expires_ms"] is None) == (name, BASE, "audit", False)
    assert flights.hold(AT + timedelta(hours=1), "another", hold="mine") == "mine"
    report(flights, a=BASE + 120_000, b=BASE + 120_000)
    assert flights.status()["watermark"] == BASE
    assert flights.explain(limit=1)["holders"][0]["hold"] == name
    asked = flights.explain(what_if_max_skew=timedelta(hours=6), what_if_arrival_target=0.99)
    assert asked["what_if_max_skew"]["limit_ms"] == 21_600_000
    assert asked["what_if_arrival_target"] is None, "the job has no frames"
    flights.release(name, "audit & more")
    assert flights.status()["watermark"] == BASE + 110_000
    assert actions(flights)[-1] == ("release", "audit & more")
    with pytest.raises(InvalidUsage, match="has no time zone"):
        flights.hold(datetime(2013, 1, 1), "x")
    with pytest.raises(InvalidUsage, match=r"or a whole number; it is 1\.5"):
        flights.hold(1.5, "x")  # type: ignore[arg-type]


def test_a_repeated_hold_is_one_hold(own: LocalCoordinator) -> None:
    """If the answer is lost, the client sends the call again, with the same name."""
    job = own.job(config=limiting_lag(timedelta(0)), transport=LosesTheFirstAnswer("POST"))
    job.ensure_job()
    name = job.hold(5, "audit")
    assert [hold["hold"] for hold in job.status()["holds"]] == [name]


def test_a_job_is_completed_reopened_and_reset(flights: Job) -> None:
    assert flights.complete("the end") == BASE + 60_001
    flights.reopen("more data")
    assert flights.status()["complete"] is False
    incarnation = flights.status()["incarnation"]
    flights.reset("wrong clock")
    status = flights.status()
    assert (status["watermark"], status["incarnation"]) == (None, incarnation + 1)


class LosesTheFirstAnswer(httpx.HTTPTransport):
    """A transport that loses the first answer to a request with this method."""

    def __init__(self, method: str) -> None:
        super().__init__()
        self.method, self.lost = method, 0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response = super().handle_request(request)
        if request.method == self.method and not self.lost:
            self.lost += 1
            response.close()
            raise httpx.ReadError("the answer is lost")
        return response


def test_a_reset_is_sent_once(own: LocalCoordinator) -> None:
    job = own.job(config=limiting_lag(timedelta(0)), transport=LosesTheFirstAnswer("POST"))
    job.ensure_job()
    incarnation = job.status()["incarnation"]
    with pytest.raises(CoordinatorUnavailable, match="the answer is lost"):
        job.reset("wrong clock")
    assert job.status()["incarnation"] == incarnation + 1


def test_a_job_is_deleted(own: LocalCoordinator) -> None:
    """A deleted job is deleted, also if the answer to the first attempt is lost."""
    job = own.job(config=limiting_lag(timedelta(0)), transport=LosesTheFirstAnswer("DELETE"))
    job.ensure_job()
    job.delete()
    with pytest.raises(JobDeleted):
        job.status()
    with pytest.raises(JobMissing):
        own.job(job="never").delete()


def test_a_configuration_is_replaced(job: Job) -> None:
    with pytest.raises(JobMissing, match="ensure_job"):
        job.configure(limiting_lag(timedelta(seconds=5)))
    job.ensure_job()
    job.configure(limiting_lag(timedelta(seconds=5)))
    assert job.status()["config"]["policy"]["lag_ms"] == 5000
    assert job.connection.config == limiting_lag(timedelta(seconds=5))


def test_wait_returns_whether_the_watermark_is_reached(flights: Job) -> None:
    """`at_least` is rounded up, so the watermark is not below the given time."""
    reached = AT - timedelta(seconds=10)
    assert flights.wait(reached, timedelta(0)) is True
    assert flights.wait(reached + timedelta(microseconds=1), timedelta(0)) is False
    assert flights.wait(BASE, timedelta(milliseconds=50)) is False
    assert flights.wait(reached, timedelta(0), read=True) is True
    later = Timer(0.2, report, [flights], {"a": BASE + 20_000, "b": BASE + 20_000})
    later.start()
    assert flights.wait(AT, timedelta(minutes=5)) is True
    later.join()
    with pytest.raises(InvalidUsage, match="timeout must be a timedelta"):
        flights.wait(AT, 5)  # type: ignore[arg-type]


def test_frames_are_read_and_awaited(own: LocalCoordinator, runs: Runs) -> None:
    job = own.job(config=limiting_lag(timedelta(0), frames="hour"))
    run = runs.run(job)
    start = datetime(2023, 11, 14, 10, tzinfo=UTC)
    first = int(start.timestamp() * 1000)
    assert job.frame(start)["state"] == "open", "a job without data may have this frame"
    run.batch(0, a=first)
    assert job.wait_for_frame(start, timedelta(0))["state"] == "open"
    in_real_time = connect(own.url, job="j")
    assert in_real_time.wait_for_frame(start, timedelta(milliseconds=50))["state"] == "open"
    run.batch(1, a=first + 3_600_000)
    frame = job.wait_for_frame(start, timedelta(minutes=1))
    assert frame == job.frame(first + 5)
    assert (frame["start"], frame["state"]) == (first, "complete")
    assert [each["start"] for each in job.frames(first=start, to=first + 1)["frames"]] == [first]
    assert job.frames(state=["open"])["frames"][0]["start"] == first + 3_600_000
    with pytest.raises(InvalidUsage, match="time zone"):
        job.frame(datetime(2023, 11, 14, 10))


def test_a_wait_is_longer_than_one_call(own: LocalCoordinator) -> None:
    """One call waits for a few seconds only, so `wait` calls again until its timeout."""
    clock = VirtualClock()
    sent: list[float] = []

    def answer(request: httpx.Request) -> httpx.Response:
        poll_s = float(request.url.params["timeout_s"])
        sent.append(poll_s)
        clock.sleep(poll_s)
        return httpx.Response(200, json={"reached": False, "now_ms": 0})

    job = connect(own.url, job="j", clock=clock, transport=httpx.MockTransport(answer))
    assert job.wait(5, timedelta(seconds=10)) is False
    assert sent == [4.0, 4.0, 2.0, 0.0]


def test_watch_yields_records_until_the_deletion(flights: Job) -> None:
    events = flights.watch()
    state = next(events)
    assert (state["event"], state["watermark"]) == ("state", BASE - 10_000)
    flights.idle("", ["a"], "slow")
    action, emission = islice(events, 2)
    assert (action["event"], action["action"], action["reason"]) == ("action", "idle", "slow")
    assert watermark_of(emission) == BASE + 50_000
    flights.delete()
    assert list(events)[-1] == {"event": "deleted"}
    with pytest.raises(JobDeleted):
        next(flights.watch())
    with pytest.raises(JobMissing, match="ensure_job"):
        next(connect(flights.connection.url, job="never").watch())


def test_watch_connects_again(own: LocalCoordinator, clock: VirtualClock) -> None:
    """After an outage, the stream continues with the missed records of the selected kinds."""
    job = own.job(config=limiting_lag(timedelta(0)))
    job.ensure_job()
    report(job, a=1)
    events = job.watch(kind=["emission"])
    assert next(events)["event"] == "state"
    report(job, a=2)
    assert watermark_of(next(events)) == 2
    own.stop()
    own.start()
    report(job, a=3)
    report(job, a=4)
    assert [watermark_of(event) for event in islice(events, 2)] == [3, 4]
    own.stop()
    with pytest.raises(CoordinatorUnavailable, match="watch j: no answer"):
        next(events)


def watermark_of(event: dict[str, Any]) -> int:
    assert event["event"] == "emission", event
    watermark: int = event["watermark"]
    return watermark


def test_consumers_of_frames(flights: Job) -> None:
    position = {"at_ms": 5, "start": BASE, "generation": 1}
    body: dict[str, Any] = {"owner": "one", "lease_ms": 60_000, "position": position}
    operate(flights, "PUT", "/consumers/load", body)
    [consumer] = flights.consumers()
    assert (consumer["consumer"], consumer["owner"], consumer["position"]) == ("load", "one", position)
    with pytest.raises(Refused, match="consumer_held"):
        flights.forget_consumer("load")
    operate(flights, "PUT", "/consumers/load", {**body, "release": True})
    flights.forget_consumer("load", "again")
    assert flights.consumers() == []
    assert actions(flights)[-1] == ("forget_consumer", "again")


def test_the_history_in_pages(job: Job) -> None:
    job.ensure_job()
    for number in range(3):
        job.declare("q", [f"s{number}"], f"number {number}")
    page = job.history(kind=["action"], limit=2)
    rest = job.history(kind=["action"], before=page["next"])
    assert [record["reason"] for record in page["records"] + rest["records"]] == ["number 2", "number 1", "number 0"]
    assert job.history(since=page["records"][0]["at_ms"] + 60_000)["records"] == []
    assert job.history(as_of=datetime(2013, 1, 1, tzinfo=UTC))["as_of"] is None


def test_late_rows_and_completeness(own: LocalCoordinator, runs: Runs) -> None:
    """Both are for the whole job, or for one substream that its column values name."""
    job = own.job(config=limiting_lag(timedelta(0)))
    runs.run(job).batch(0, a=BASE)
    assert job.late()["rows"]["on_time"] == job.late("q", "a", limit=1)["rows"]["on_time"] == 1
    assert (job.offsets("q")["partitions"], job.wait_for_offsets("q", {"t": {0: 1}}, timedelta(0))) == ([], False)
    with pytest.raises(InvalidUsage, match="no partition"):
        job.wait_for_offsets("q", {})
    curve = job.completeness("q", "a", window=timedelta(hours=1), target=0.99, lag=[timedelta(0), timedelta(minutes=1)])
    assert (curve["target"], curve["rows"]) == (0.99, 0)
    assert job.completeness()["lag_ms"] == 0
    assert job.holders("1d", limit=5)["interval_ms"] == 300_000
    for read in (job.late, job.completeness):
        with pytest.raises(Refused, match="substream_not_found"):
            read("q", ("a", None))
