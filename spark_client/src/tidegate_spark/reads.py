"""The methods of a job that read its state."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal
from urllib.parse import urlencode

from tidegate_spark.arguments import check_list, name_given, time_number
from tidegate_spark.batch import ROW_CLASSES
from tidegate_spark.config import milliseconds, share_of_rows
from tidegate_spark.errors import InvalidUsage
from tidegate_spark.protocol.connection import JobConnection
from tidegate_spark.substreams import Values

POLL_S = 4.0
"""Maximum wait in seconds of one call for a watermark. It is shorter than every timeout of an attempt."""
OFFSETS_EACH_S = 0.5
"""Pause in seconds between two reads of committed offsets."""


class JobReads:
    """The methods of a job that read its state.

    Attributes:
        connection: The connection to the job.
    """

    def __init__(self, connection: JobConnection) -> None:
        self.connection = connection

    def status(self) -> dict[str, Any]:
        """Return the job's status: the JSON object of ``GET /v1/jobs/{job}``.

        Role of the key: any.
        """
        return self._get("")

    def wait(
        self,
        at_least: datetime | int,
        timeout: timedelta = timedelta(hours=1),
        force: bool = False,
        read: bool = False,
    ) -> bool:
        """Wait until all results below a time are written, and return whether they were within ``timeout``.

        The method waits for the written watermark, because the results of windows are written after their rows are
        read. Native queries and windows tell when they have written; other queries write before they commit.

        Role of the key: any.

        Args:
            at_least: Watermark to wait for: a datetime with a time zone, or a number in the unit of the event times.
            timeout: Longest wait. With 0, the method returns at once.
            force: Whether to wait for a number that looks like seconds or microseconds in place of milliseconds.
            read: Whether to wait for the emitted watermark: the rows are then read, but windows may be unwritten.
        """
        clock, number = self.connection.clock, time_number("at_least", at_least, round_up=True)
        deadline = clock.monotonic() + milliseconds("timeout", timeout) / 1000
        flags = {name: "true" for name, is_set in {"force": force, "read": read}.items() if is_set}
        while True:
            poll_s = min(max(0.0, deadline - clock.monotonic()), POLL_S)
            answer = self._get("/watermark", at_least=number, timeout_s=poll_s, **flags)
            reached: bool = answer["reached"]
            if reached or poll_s == 0:
                return reached

    def frames(
        self,
        first: datetime | int | None = None,
        to: datetime | int | None = None,
        state: Sequence[str] = (),
        limit: int = 100,
    ) -> dict[str, Any]:
        """Return a page of the job's frames, latest first: the JSON object of ``GET /v1/jobs/{job}/frames``.

        Role of the key: any.

        Args:
            first: A time in the first frame; default: the first frame that the coordinator keeps.
            to: Time before which the frames start, such as the ``next`` of the page before; default: no bound.
            state: States of the frames, such as ``["complete"]``; default: all states.
            limit: Maximum number of frames in the page, 1 to 1000.
        """
        times = {name: None if at is None else time_number(name, at) for name, at in {"from": first, "to": to}.items()}
        return self._get("/frames", **times, state=state, limit=limit)

    def frame(self, start: datetime | int) -> dict[str, Any]:
        """Return the frame that contains a time: the member ``frame`` of ``GET /v1/jobs/{job}/frames/{start}``.

        Role of the key: any.

        Args:
            start: The start of the frame, or another time in it.
        """
        found: dict[str, Any] = self._get(f"/frames/{time_number('start', start)}")["frame"]
        return found

    def wait_for_frame(
        self, start: datetime | int, timeout: timedelta = timedelta(hours=1), force: bool = False
    ) -> dict[str, Any]:
        """Wait until a frame is finished, and return it. After ``timeout``, its ``state`` may be ``open``.

        A finished frame is ``complete``, ``complete_with_exclusions`` or ``empty``. All of its results are written,
        except for the ``exclusions``.

        Role of the key: any.

        Args:
            start: The start of the frame, or another time in it.
            timeout: Longest wait. With 0, the method returns at once.
            force: Whether to accept a number that looks like seconds or microseconds in place of milliseconds.
        """
        clock, number = self.connection.clock, time_number("start", start)
        deadline = clock.monotonic() + milliseconds("timeout", timeout) / 1000
        flags = {"force": "true"} if force else {}
        while True:
            wait_s = min(max(0.0, deadline - clock.monotonic()), POLL_S)
            frame: dict[str, Any] = self._get(f"/frames/{number}", wait_s=wait_s, **flags)["frame"]
            if frame["state"] != "open" or wait_s == 0:
                return frame

    def wait_for_offsets(
        self, query: str, offsets: Mapping[str, Mapping[int, int]], timeout: timedelta = timedelta(hours=1)
    ) -> bool:
        """Wait until a query has committed end offsets of Kafka, and return whether it did so within ``timeout``.

        All batches with records below these offsets are then committed.

        Role of the key: any.

        Args:
            query: The query.
            offsets: End offsets by topic and partition, such as ``{"landings": {0: 120}}``.
            timeout: Longest wait. With 0, the method returns at once.

        Raises:
            InvalidUsage: If no partition is named.
        """
        wanted = {f"{topic}/{number}": end for topic, of in offsets.items() for number, end in of.items()}
        if not wanted:
            raise InvalidUsage("offsets has no partition; write for example {'landings': {0: 120}}")
        clock = self.connection.clock
        deadline = clock.monotonic() + milliseconds("timeout", timeout) / 1000
        while True:
            committed = {row["partition"]: row["committed"] for row in self.offsets(query)["partitions"]}
            if all(committed.get(partition, -1) >= end for partition, end in wanted.items()):
                return True
            if clock.monotonic() >= deadline:
                return False
            clock.sleep(OFFSETS_EACH_S)

    def watch(self, kind: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
        """Yield the history records of the job as they happen. After a reconnection, yield the missed records.

        Each record is a JSON object with its kind as ``event``. The first object is the ``state``: the current
        watermark. A ``reset`` contains the state after a reset, or in place of missing records. ``deleted`` is the last
        event of a deleted job.

        Role of the key: any.

        Args:
            kind: Kinds of records, such as ``["emission"]``; default: all kinds.
        """
        return self.connection.watch(kind)

    def explain(
        self,
        limit: int = 3,
        *,
        what_if_max_skew: timedelta | None = None,
        what_if_arrival_target: float | None = None,
    ) -> dict[str, Any]:
        """Return the holders of the watermark, their deadlines, and the watermark without them.

        Role of the key: any.

        Args:
            limit: Number of holders to list, 1 to 10.
            what_if_max_skew: Another ``max_skew``, whose effect now the result includes.
            what_if_arrival_target: Another ``arrival_target``, whose effect in the recorded past the result includes.

        Raises:
            InvalidUsage: If a what-if is no value of its setting.
        """
        asked: dict[str, Any] = {}
        if what_if_max_skew is not None:
            asked["what_if_max_skew_ms"] = milliseconds("what_if_max_skew", what_if_max_skew, 1)
        if what_if_arrival_target is not None:
            asked["what_if_arrival_target"] = share_of_rows("what_if_arrival_target", what_if_arrival_target)
        return self._get(":explain", limit=limit, **asked)

    def holders(self, within: Literal["15m", "1h", "6h", "1d"] = "1h", limit: int = 10) -> dict[str, Any]:
        """Return for how long each substream, query and hold has held the watermark, in total and by hour.

        The result is the JSON object of ``GET /v1/jobs/{job}/holders``.

        Role of the key: any.

        Args:
            within: Range of processing time before now.
            limit: Maximum number of holders, 1 to 100.
        """
        return self._get("/holders", range=within, limit=limit)

    def consumers(self) -> list[dict[str, Any]]:
        """Return the programs that deliver the frames of the job, with their leases and positions.

        Role of the key: any.
        """
        found: list[dict[str, Any]] = self._get("/consumers")["consumers"]
        return found

    def history(
        self,
        as_of: datetime | int | None = None,
        since: datetime | int | None = None,
        kind: Sequence[str] = (),
        before: str | None = None,
        limit: int = 100,
    ) -> dict[str, Any]:
        """Return a page of the job's history, latest record first: the JSON object of ``GET /v1/jobs/{job}/history``.

        Role of the key: any.

        Args:
            as_of: Latest processing time of records. The answer includes the watermark at that time.
            since: Earliest processing time of records.
            kind: Kinds of records, such as ``["action"]``; default: all kinds.
            before: The ``next`` of the previous page.
            limit: Maximum number of records in the page, 1 to 1000.
        """
        times = {
            name: None if at is None else time_number(name, at) for name, at in {"as_of": as_of, "since": since}.items()
        }
        return self._get("/history", **times, kind=kind, before=before, limit=limit)

    def completeness(
        self,
        query: str = "",
        substream: Values = None,
        window: timedelta | None = None,
        target: float | None = None,
        lag: Sequence[timedelta] = (),
    ) -> dict[str, Any]:
        """Return the completeness curve: the share of rows on time, and the latency, for each lag.

        Role of the key: any.

        Args:
            query: Query of the substream.
            substream: Value of the substream's column, or a tuple of the values of its columns; None: the whole job.
            window: Size of the windows by which rows are classified; default: each row by its own event time.
            target: Share of rows on time for which to recommend a lag.
            lag: Lags of the curve; default: all lags at which the curve changes.
        """
        window_ms = None if window is None else milliseconds("window", window)
        check_list("completeness", "lags", lag)
        lag_ms = [milliseconds("lag", each) for each in lag]
        return self._get(
            "/completeness", **_substream(query, substream), window_ms=window_ms, target=target, lag_ms=lag_ms
        )

    def late(self, query: str = "", substream: Values = None, limit: int = 20) -> dict[str, Any]:
        """Return updated, dropped and diverted rows, by hour of event time and by substream.

        Role of the key: any.

        Args:
            query: Query of the substream.
            substream: As for :meth:`completeness`.
            limit: Maximum number of spans to list, 1 to 1000.
        """
        return self._get("/late", **_substream(query, substream), limit=limit)

    def queries(self) -> list[dict[str, Any]]:
        """Return the job's queries, each with its latest batch.

        Role of the key: any.
        """
        return self.connection.run(self.connection.calls.queries())

    def offsets(self, query: str) -> dict[str, Any]:
        """Return how far the committed batches of a query have read each partition of Kafka.

        The result is the JSON object of ``GET /v1/jobs/{job}/queries/{query}/offsets``. A query that has not begun has
        no partitions yet.

        Role of the key: any.
        """
        return self._get(f"/queries/{query}/offsets")

    def substreams(self) -> list[dict[str, Any]]:
        """Return all substreams of the job.

        Role of the key: any.
        """
        return self.connection.run(self.connection.calls.substreams())

    def metrics(self) -> dict[str, int | None]:
        """Return the job's metrics by name: the watermark, its lag (ms), and the rows of all batches by class.

        The names are those of :meth:`Committed.metrics`. Any process can call this method, for example in a Spark
        listener.

        Role of the key: any.
        """
        status = self.status()
        watermark, rows = status["watermark"], status["rows"]
        return {
            "tidegate.watermark": watermark,
            "tidegate.watermark_lag_ms": None if watermark is None else status["now_ms"] - watermark,
            **{f"tidegate.{row_class}_rows": rows[row_class] for row_class in ROW_CLASSES},
        }

    def _get(self, path: str, **parameters: Any) -> dict[str, Any]:
        given = {name: value for name, value in parameters.items() if value is not None}
        query = f"?{urlencode(given, doseq=True)}" if given else ""
        return self.connection.run(self.connection.calls.call("GET", path + query))


def _substream(query: str, substream: Values) -> dict[str, Any]:
    """Return the parameters for one substream; none for the whole job."""
    return {} if substream is None else {"query": query, "substream": name_given("substream", substream)}
