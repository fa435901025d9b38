"""The source whose offset is the watermark, called as Spark calls it."""

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


def reader_of(job: Job, size: int, slide: int, offset: int = 0) -> WatermarkReader:
    options = {**job.connection.reader_options, "size": size, "slide": slide, "offset": offset}
    reader = Markers({name: str(value) for name, value in options.items()}).streamReader(None)
    assert isinstance(reader, WatermarkReader)
    return reader


def report(job: Job, event_time: int) -> None:
    """Report an event time, which moves the coalesced watermark to 10 s below it."""
    operate(job, "POST", ":report", {"substreams": ["a"], "max_event_times": [event_time]})


@pytest.fixture(autouse=True)
def _poll_on_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markers, "POLL_EVERY_S", 0.0)


@pytest.fixture
def coordinated(job: Job) -> Job:
    job.ensure_job()
    return job


def test_the_offset_moves_when_a_window_closes(coordinated: Job) -> None:
    reader = reader_of(coordinated, 20_000, 10_000, 3000)
    assert reader.latestOffset(reader.initialOffset(), None) == START
    ends = []
    for max_event_time in (32_000, 33_000, 42_999, 43_000):
        report(coordinated, max_event_time)
        ends.append(reader.latestOffset(START, None)["watermark"])
    assert ends == [13_000, 23_000, 23_000, 33_000]
    assert (reader.partitions({}, {}), list(reader.read(None))) == ([], [])  # type: ignore[arg-type]


def test_the_last_windows_close_at_the_end_of_input(coordinated: Job) -> None:
    report(coordinated, 42_000)
    tumbling, overlapping = reader_of(coordinated, 10_000, 10_000), reader_of(coordinated, 30_000, 10_000)
    coordinated.complete()
    assert tumbling.latestOffset(START, None) == {"watermark": 50_000}
    assert overlapping.latestOffset(START, None) == {"watermark": 70_000}


def test_an_outage_does_not_change_the_offset(own: LocalCoordinator) -> None:
    """During an outage of the coordinator the source returns the last known offset."""
    job = own.job(config=limiting_lag(LAG))
    job.ensure_job()
    report(job, 50_000)
    reader = reader_of(job, 10_000, 10_000)
    known: dict[str, Any] = reader.latestOffset(START, None)
    assert known["watermark"] is not None
    own.stop()
    assert reader.latestOffset(known, None) == known
    again = reader_of(job, 10_000, 10_000)
    assert again.latestOffset(known, None) == known, "a new reader must return the offset from Spark's log"
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
    ids=["incomplete", "not HTTP", "no watermark", "null", "502", "closed"],
)
def test_an_invalid_answer_does_not_change_the_offset(answer: bytes, coordinated: Job) -> None:
    """An invalid answer does not change the offset and does not fail the query."""
    report(coordinated, 30_000)
    known = reader_of(coordinated, 10_000, 10_000).latestOffset(START, None)

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


def test_under_available_now_the_offset_is_fixed(coordinated: Job) -> None:
    """Under `availableNow` the offset does not change after the start of the run."""
    report(coordinated, 30_000)
    reader = reader_of(coordinated, 10_000, 10_000)
    reader.prepareForTriggerAvailableNow()
    report(coordinated, 60_000)
    assert reader.latestOffset(START, None) == {"watermark": 20_000}
