"""The source whose offset is the watermark, against a real coordinator, as Spark calls it."""

import socketserver
import threading
from typing import Any

import pytest

from tests.support.api import operate
from tests.support.local import LocalCoordinator
from tests.support.streams import LAG
from tidegate_spark import Job, limiting_lag
from tidegate_spark.windows import markers
from tidegate_spark.windows.markers import Markers, WatermarkReader

START = {"watermark": None}


def looking_at(job: Job, size: int, slide: int, offset: int = 0) -> WatermarkReader:
    options = {"url": job.connection.watermark_url, "size": size, "slide": slide, "offset": offset}
    reader = Markers({name: str(value) for name, value in options.items()}).streamReader(None)
    assert isinstance(reader, WatermarkReader)
    return reader


def report(job: Job, event_time: int) -> None:
    """Moves the coalesced watermark to ten seconds below."""
    operate(job, "POST", ":report", {"substreams": ["a"], "max_event_times": [event_time]})


@pytest.fixture(autouse=True)
def _each_call_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markers, "POLL_EVERY_S", 0.0)


@pytest.fixture
def coordinated(job: Job) -> Job:
    job.ensure_job()
    return job


def test_it_moves_when_a_window_is_closed_and_not_before(coordinated: Job) -> None:
    reader = looking_at(coordinated, 20_000, 10_000, 3000)
    assert reader.latestOffset(reader.initialOffset(), None) == START
    ends = []
    for max_event_time in (32_000, 33_000, 42_999, 43_000):
        report(coordinated, max_event_time)
        ends.append(reader.latestOffset(START, None)["watermark"])
    assert ends == [13_000, 23_000, 23_000, 33_000]
    assert (reader.partitions({}, {}), list(reader.read(None))) == ([], [])  # type: ignore[arg-type]


def test_at_the_end_of_input_the_last_windows_close_however_far_they_reach(coordinated: Job) -> None:
    report(coordinated, 42_000)
    tumbling, overlapping = looking_at(coordinated, 10_000, 10_000), looking_at(coordinated, 30_000, 10_000)
    coordinated.complete()
    assert tumbling.latestOffset(START, None) == {"watermark": 50_000}
    assert overlapping.latestOffset(START, None) == {"watermark": 70_000}


def test_a_coordinator_that_is_away_moves_nothing(own: LocalCoordinator) -> None:
    """Nor does one that has forgotten; and the query that asks goes on."""
    job = own.job(config=limiting_lag(LAG))
    job.ensure_job()
    report(job, 50_000)
    reader = looking_at(job, 10_000, 10_000)
    known: dict[str, Any] = reader.latestOffset(START, None)
    assert known["watermark"] is not None
    own.stop()
    assert reader.latestOffset(known, None) == known
    again = looking_at(job, 10_000, 10_000)
    assert again.latestOffset(known, None) == known, "after a restart, from Spark's log"
    assert again.latestOffset(START, None) == START


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nnull",
        b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n",
        b"",
    ],
    ids=["broken off", "no HTTP", "another's", "nothing", "a proxy's", "closed"],
)
def test_an_answer_that_is_none_moves_nothing(answer: bytes, coordinated: Job) -> None:
    """It must not end the query either."""
    report(coordinated, 30_000)
    known = looking_at(coordinated, 10_000, 10_000).latestOffset(START, None)

    class Broken(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(65_536)
            self.request.sendall(answer)

    with socketserver.TCPServer(("127.0.0.1", 0), Broken) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            options = {"url": f"http://127.0.0.1:{server.server_address[1]}/", "size": "1", "slide": "1", "offset": "0"}
            assert Markers(options).streamReader(None).latestOffset(known, None) == known  # type: ignore[arg-type]
        finally:
            server.shutdown()
            thread.join()


def test_a_run_over_what_is_there_has_an_end(coordinated: Job) -> None:
    """Under availableNow nothing may be added once it has begun."""
    report(coordinated, 30_000)
    reader = looking_at(coordinated, 10_000, 10_000)
    reader.prepareForTriggerAvailableNow()
    report(coordinated, 60_000)
    assert reader.latestOffset(START, None) == {"watermark": 20_000}
