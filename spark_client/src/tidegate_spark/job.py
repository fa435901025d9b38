"""The way in: a connection to one job of a coordinator."""

import math
import os
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Literal

import httpx
from pyspark.sql import DataFrame

from tidegate_spark.clock import SYSTEM_CLOCK, Clock
from tidegate_spark.columns import Columns
from tidegate_spark.config import JobConfig
from tidegate_spark.coordinator import Coordinator
from tidegate_spark.errors import InvalidUsage
from tidegate_spark.ids import checked_id
from tidegate_spark.outage import DEFAULT_PATIENCE, OnOutage
from tidegate_spark.stream import Stream, given
from tidegate_spark.substreams import Substream, Values, name_of
from tidegate_spark.versions import check_native, check_session
from tidegate_spark.windows.frame import Frame


class Job:
    """One job. Queries are started from :meth:`stream`; the rest is for the program that owns the job."""

    def __init__(self, coordinator: Coordinator, config: JobConfig | None, on_outage: OnOutage) -> None:
        self.coordinator, self.config, self.on_outage = coordinator, config, on_outage
        self.frames: set[Frame] = set()
        """Windows of the queries that were started from this."""

    def stream(self, df: DataFrame, *, event_time: str, substream: Substream) -> Stream:
        """Coordinates a streaming DataFrame by its columns.

        :param event_time: a timestamp, a timestamp_ntz (read as UTC), or a long (epoch milliseconds, or whatever unit
            the job counts in).
        :param substream: what makes a part of the input whose events are roughly in order: a column (an airport), a
            list of columns (``["topic", "partition"]`` of Kafka), :data:`SOURCE_PARTITION`; None: it is all one.
        :raises InvalidUsage: for columns that are not there, or of a type that cannot be used.
        """
        check_session(df.sparkSession)
        columns = Columns(event_time, substream)
        columns.check(df)
        return Stream(self, df, columns)

    def with_watermark(
        self,
        df: DataFrame,
        *,
        event_time: str,
        substream: Substream,
        queryName: str | None = None,
        checkpointLocation: str | os.PathLike[str] | None = None,
        windows: timedelta | None = None,
        slide: timedelta | None = None,
        offset: timedelta | None = None,
        declare: Sequence[Values] = (),
        rate_limited_source: bool | None = None,
        replaces_substreams: bool = False,
    ) -> DataFrame:
        """The same stream, with the job's watermark in place of Spark's ``withWatermark``: for windows, deduplication,
        joins of streams and ``transformWithState``, as Spark has them.

        Spark drops the rows that are late, and the job counts them. What the stream saw is reported when Spark has
        finished a batch, so the watermark moves a batch later than that of :meth:`stream`, as Spark's own does.

        :param event_time: a timestamp. Rows at the watermark or above are on time.
        :param substream: as for :meth:`stream`.
        :param queryName: its stable name in the job, the same after every restart. Where a query has several native
            inputs, each has a name of its own.
        :param checkpointLocation: that of the query that is going to be started.
        :param windows: the size of the windows that come after, where nothing but windows does: then the watermark
            moves from end to end of them, and all that the job has seen close when it is complete. Without it, it moves
            by milliseconds, which is right for whatever judges row by row, also where windows come after that. With
            ``slide`` and ``offset`` as :meth:`Stream.windows` has them.
        :param declare: substreams that are to hold the watermark back from the start, as :meth:`Stream.declare`.
        :param rate_limited_source: as :meth:`Stream.rate_limited_source`; None: unless said otherwise.
        :param replaces_substreams: as for :meth:`Stream.start`.
        :raises InvalidUsage: for columns that cannot be used, and for streams on which Spark would not follow.
        """
        # Not for PySpark 3.5, which has no data sources in Python.
        check_native(df.sparkSession)
        from tidegate_spark.native.following import following, frame_of

        columns = Columns(event_time, substream)
        declared = tuple(_names("declare", declare))
        frame = frame_of(windows, slide, offset)
        query, location = given("with_watermark", queryName, checkpointLocation)
        followed = following(
            self, df, columns, query, location, frame, declared, rate_limited_source, replaces_substreams
        )
        if frame is not None:
            self.frames.add(frame)
        return followed

    def ensure_job(self) -> None:
        """Creates the job from the rules given to :func:`connect`, if it is not there; changes nothing otherwise."""
        self.coordinator.ensure_job(self.config)

    def change_config(self, config: JobConfig) -> None:
        """Puts other rules in force at once. No watermark goes back by it.

        Queries of this job create the job from these, should the coordinator lose it.
        """
        self.coordinator.change_job(config)
        self.config = config

    def declare(self, query: str, substreams: Sequence[Values], reason: str = "") -> None:
        """Makes substreams of a query known, so that they hold the watermark back before their first row.

        Each by the value of its column, or by a tuple of the values of its columns.
        """
        self.coordinator.declare(query, _names("declare", substreams), reason)

    def done(self, query: str, substreams: Sequence[Values], reason: str = "") -> None:
        """Substreams of a query have ended; they never hold the watermark again."""
        self.coordinator.done(query, _names("done", substreams), reason)

    def hand_over(self, query: str, successor: str, reason: str = "") -> None:
        """Ends a query whose substreams another one goes on with: it was renamed.

        Or it goes on itself, on a new checkpoint: ``successor`` is then its own name. A batch that it left open is
        given up: the successor reads those rows again, or they are missing.
        """
        self.coordinator.retire(query, successor, reason)

    def retire(self, query: str, reason: str = "") -> None:
        """Ends a query for good: its substreams and its open batch no longer hold the watermark."""
        self.coordinator.retire(query, None, reason)

    def complete(self, reason: str = "", up_to: datetime | int | None = None) -> int | None:
        """End the input: move the watermark above everything that was seen, and return it.

        Args:
            reason: Kept with the record.
            up_to: The watermark goes there at least: an aware datetime, or a number in the unit of the event times.
                Default: the end of the last window that contains the highest event time, over all windows of this
                job's streams. Other operators of Spark behind :meth:`with_watermark` keep state beyond that (the time
                bound of
                a join, a timer); they give it out when the watermark has passed its end.

        Raises:
            InvalidUsage: If ``up_to`` has no time zone.
        """
        if isinstance(up_to, datetime):
            if up_to.tzinfo is None:
                raise InvalidUsage(f"up_to={up_to!r} has no time zone: give it one, such as datetime.UTC.")
            up_to = math.ceil(up_to.timestamp() * 1000)
        if (
            up_to is None
            and self.frames
            and (max_event_time := self.coordinator.status()["max_event_time"]) is not None
        ):
            up_to = max(frame.cut_at_the_end(max_event_time + 1) for frame in self.frames)
        watermark: int | None = self.coordinator.complete(reason, up_to)["watermark"]
        return watermark

    def status(self) -> dict[str, Any]:
        """The job as the coordinator sees it."""
        return self.coordinator.status()

    def queries(self) -> list[dict[str, Any]]:
        """The queries that feed the job, each with its latest batch."""
        return self.coordinator.queries()

    def metrics(self) -> dict[str, int | None]:
        """The job in named numbers, for a metrics system: from any process, and in any listener of Spark's.

        The same names as those of :meth:`Committed.metrics`; the rows are those of all batches so far.
        """
        status = self.coordinator.status()
        watermark, rows = status["watermark"], status["rows"]
        return {
            "tidegate.watermark": watermark,
            "tidegate.watermark_lag_ms": None if watermark is None else status["now_ms"] - watermark,
            "tidegate.on_time_rows": rows["on_time"],
            "tidegate.updated_rows": rows["updated"],
            "tidegate.late_rows": rows["late"],
            "tidegate.null_event_time_rows": rows["null_event_time"],
            "tidegate.future_rows": rows["future"],
        }

    def substreams(self) -> list[dict[str, Any]]:
        """The table of substreams."""
        return self.coordinator.substreams()


def _names(method: str, substreams: Sequence[Values]) -> list[str]:
    if isinstance(substreams, str):
        raise InvalidUsage(f"{method} takes a list of substreams; it is {substreams!r}. Write [{substreams!r}].")
    return [name_of(values) for values in substreams]


def connect(
    url: str | None = None,
    *,
    job: str,
    config: JobConfig | None = None,
    key: str | None = None,
    on_outage: timedelta | Literal["continue"] = DEFAULT_PATIENCE,
    transport: httpx.BaseTransport | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> Job:
    """A job to ``job``. Nothing is sent yet; a query that is started creates the job.

    :param url: of the coordinator; by default the environment's ``TIDEGATE_URL``.
    :param rules: to create the job from, where it is not there (:func:`limiting_lag`); None: it must be there.
    :param key: sent as a bearer key; by default the environment's ``TIDEGATE_TOKEN``.
    :param on_outage: how long a batch waits for a coordinator that does not answer before its query fails. Or
        ``"continue"``: it goes on with the pin of the batch before, and the coordinator is told when it is back.
    :param transport: sends the driver's requests instead of httpx's own transport: for tests, or a proxy that httpx
        does not know. Executors report over connections of their own.
    :param clock: the driver's clock; for tests.
    :raises InvalidUsage: for arguments that cannot work.
    """
    url = url or os.environ.get("TIDEGATE_URL")
    if not url:
        raise InvalidUsage("Give the coordinator's address: connect('http://host:8000', ...), or set TIDEGATE_URL.")
    outage = OnOutage.of(on_outage)
    key = key or os.environ.get("TIDEGATE_TOKEN")
    coordinator = Coordinator(url, checked_id("job", job), key, outage.patience, transport, clock)
    return Job(coordinator, config, outage)
