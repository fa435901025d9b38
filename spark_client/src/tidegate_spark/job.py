"""The connection to one job of a coordinator."""

import math
import os
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Literal, Unpack

import httpx
from pyspark.sql import DataFrame

from tidegate_spark.batch import ROW_CLASSES
from tidegate_spark.clock import SYSTEM_CLOCK, Clock
from tidegate_spark.columns import Columns
from tidegate_spark.config import JobConfig, check_id
from tidegate_spark.errors import InvalidUsage
from tidegate_spark.frame import Frame
from tidegate_spark.native.options import NativeOptions, frame_of
from tidegate_spark.protocol.connection import JobConnection
from tidegate_spark.protocol.retry import DEFAULT_ON_OUTAGE, OnOutage
from tidegate_spark.protocol.transport import HttpTransport, check_url
from tidegate_spark.start import check_start
from tidegate_spark.stream import Stream
from tidegate_spark.substreams import Substream, Values, name_of
from tidegate_spark.versions import check_native, check_session


class Job:
    """A job of a coordinator. Create it with :func:`connect`.

    :meth:`stream` and :meth:`with_watermark` coordinate queries. The other methods call the coordinator to manage the
    job. These methods raise:

    * :class:`JobMissing` if the job does not exist,
    * :class:`Refused` if the coordinator refuses the call,
    * :class:`CoordinatorUnavailable` if it does not answer within ``on_outage`` (``"continue"``: 10 minutes).

    Attributes:
        connection: The connection to the job.
        frames: The windows of the queries that were started from this object.
    """

    def __init__(self, connection: JobConnection) -> None:
        self.connection = connection
        self.frames: set[Frame] = set()

    def stream(self, df: DataFrame, *, event_time: str, substream: Substream) -> Stream:
        """Return a stream that this job coordinates. The client sends no request before :meth:`Stream.start`.

        Args:
            df: The streaming DataFrame.
            event_time: Column of type timestamp, timestamp_ntz (read as UTC), or long (epoch milliseconds, or another
                unit that the whole job uses).
            substream: Column that identifies a substream (an airport), a list of columns (``["topic", "partition"]`` of
                Kafka), or :data:`SOURCE_PARTITION`. None if the stream is one substream. A substream is a part of the
                input whose events are roughly in order.

        Raises:
            InvalidUsage: If a column is missing, its type is not supported, or the Spark session is not supported.
        """
        check_session(df.sparkSession)
        columns = Columns(event_time, substream)
        columns.check(df)
        return Stream(self.connection, self.frames, df, columns)

    def with_watermark(
        self,
        df: DataFrame,
        *,
        event_time: str,
        substream: Substream,
        queryName: str | None = None,
        checkpointLocation: str | os.PathLike[str] | None = None,
        **options: Unpack[NativeOptions],
    ) -> DataFrame:
        """Return the stream with the job's watermark, in place of Spark's ``withWatermark``.

        Spark's own windows, deduplication, stream joins and ``transformWithState`` then follow the job. Spark drops
        late rows, and the coordinator counts them. The client reports a batch after Spark has finished it.
        Therefore the watermark moves one batch later than with :meth:`stream`, like Spark's own watermark.

        Args:
            df: The streaming DataFrame.
            event_time: Column of type timestamp. Rows at the watermark or above are on time.
            substream: As for :meth:`stream`.
            queryName: Name of this input, the same at every start. Pass the query's name. Each further input of the
                query needs its own name.
            checkpointLocation: Checkpoint of the query, as passed to Spark's ``start()``.
            options: See :class:`NativeOptions`.

        Raises:
            InvalidUsage: If an argument is invalid, or Spark cannot follow the job on this stream or in this session.
        """
        check_native(df.sparkSession)
        # PySpark 3.5 has no data sources in Python, so the module cannot be imported there.
        from tidegate_spark.native.following import NativeStream

        query, location = check_start("with_watermark", queryName, checkpointLocation)
        frame, declared = frame_of(options), _names("declare", options.get("declare", ()))
        columns = Columns(event_time, substream)
        followed = NativeStream(self.connection, df, columns, query, location, frame, declared, options).follow()
        if frame is not None:
            self.frames.add(frame)
        return followed

    # -- the job --------------------------------------------------------------------------------------------------

    def ensure_job(self) -> None:
        """Create the job with the configuration passed to :func:`connect`, unless the job exists."""
        self.connection.run(self.connection.calls.ensure_job(self.connection.config))

    def change_config(self, config: JobConfig) -> None:
        """Replace the job's configuration at once. No watermark goes back.

        If the coordinator loses the job, queries started from this object create the job again with ``config``.
        """
        self.connection.run(self.connection.calls.change_job(config))
        self.connection.config = config

    def declare(self, query: str, substreams: Sequence[Values], reason: str = "") -> None:
        """Declare substreams of a query, so that they hold the watermark before their first row.

        Args:
            query: Name of the query.
            substreams: For each substream, the value of its column, or a tuple of the values of its columns.
            reason: Text that the coordinator records with the action.
        """
        self.connection.run(self.connection.calls.declare(query, _names("declare", substreams), reason))

    def done(self, query: str, substreams: Sequence[Values], reason: str = "") -> None:
        """Mark substreams of a query as done: they never hold the watermark again.

        The arguments are those of :meth:`declare`.
        """
        self.connection.run(self.connection.calls.done(query, _names("done", substreams), reason))

    def hand_over(self, query: str, successor: str, reason: str = "") -> None:
        """Retire a query whose substreams another query continues.

        Call this method when you rename a query or start it on a new checkpoint. For a new checkpoint, ``successor`` is
        the query's own name. An open batch is abandoned: its rows are missing unless the successor reads them again.
        """
        self.connection.run(self.connection.calls.retire(query, successor, reason))

    def retire(self, query: str, reason: str = "") -> None:
        """Retire a query: its substreams and its open batch no longer hold the watermark."""
        self.connection.run(self.connection.calls.retire(query, None, reason))

    def complete(self, reason: str = "", up_to: datetime | int | None = None) -> int | None:
        """Declare the end of the input: move the watermark above every event time seen, and freeze the job.

        Args:
            reason: Text that the coordinator records with the action.
            up_to: Lowest value for the watermark: a datetime with a time zone, or a number in the unit of the event
                times. Default: the end of the last window that contains the max event time, over all windows of queries
                started from this object. With :meth:`with_watermark`, other Spark operators may keep state beyond this
                end (the time bound of a join, a timer). To have that state emitted, pass a value beyond its end.

        Returns:
            The emitted watermark; None if the job has none.

        Raises:
            InvalidUsage: If ``up_to`` has no time zone.
            Refused: If a batch is open, or a hold is in force.
        """
        if isinstance(up_to, datetime):
            if up_to.tzinfo is None:
                raise InvalidUsage(f"up_to={up_to!r} has no time zone: give it one, such as datetime.UTC.")
            up_to = math.ceil(up_to.timestamp() * 1000)
        if up_to is None and self.frames:
            max_event_time = self.status()["max_event_time"]
            if max_event_time is not None:
                up_to = max(frame.cut_at_the_end(max_event_time + 1) for frame in self.frames)
        answer = self.connection.run(self.connection.calls.complete(reason, up_to))
        watermark: int | None = answer["watermark"]
        return watermark

    # -- the state ------------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Return the job's status: the JSON object of ``GET /v1/jobs/{job}``."""
        return self.connection.run(self.connection.calls.status())

    def queries(self) -> list[dict[str, Any]]:
        """Return the job's queries, each with its latest batch."""
        return self.connection.run(self.connection.calls.queries())

    def substreams(self) -> list[dict[str, Any]]:
        """Return all substreams of the job."""
        return self.connection.run(self.connection.calls.substreams())

    def metrics(self) -> dict[str, int | None]:
        """Return the job's metrics by name: the watermark, its lag (ms), and the rows of all batches by class.

        The names are those of :meth:`Committed.metrics`. Any process can call this method, for example in a Spark
        listener.
        """
        status = self.status()
        watermark, rows = status["watermark"], status["rows"]
        return {
            "tidegate.watermark": watermark,
            "tidegate.watermark_lag_ms": None if watermark is None else status["now_ms"] - watermark,
            **{f"tidegate.{row_class}_rows": rows[row_class] for row_class in ROW_CLASSES},
        }


def _names(method: str, substreams: Sequence[Values]) -> list[str]:
    if isinstance(substreams, str):
        raise InvalidUsage(f"{method} takes a list of substreams, not {substreams!r}; write [{substreams!r}].")
    return [name_of(values) for values in substreams]


def connect(
    url: str | None = None,
    *,
    job: str,
    config: JobConfig | None = None,
    key: str | None = None,
    on_outage: timedelta | Literal["continue"] = DEFAULT_ON_OUTAGE,
    transport: httpx.BaseTransport | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> Job:
    """Return a job of a coordinator, without sending a request. The first start of a query creates the job.

    Args:
        url: Address of the coordinator, such as ``http://host:8000``; default: environment variable ``TIDEGATE_URL``.
        job: Name of the job: 1 to 128 letters, digits and ``. _ ~ -``.
        config: Configuration of a new job, as :func:`limiting_lag` returns it. None: the job must exist.
        key: Bearer key; default: environment variable ``TIDEGATE_TOKEN``.
        on_outage: Time for which a batch waits for an unavailable coordinator before its query fails. With
            ``"continue"``, the batch continues with the pinned watermark of the previous batch and is reported later.
        transport: httpx transport for the driver's requests. Executors use their own connections.
        clock: The driver's clock, for tests.

    Raises:
        InvalidUsage: If the address is missing, or an argument is invalid.
    """
    url = url or os.environ.get("TIDEGATE_URL")
    if not url:
        raise InvalidUsage("The address is missing: call connect('http://host:8000', ...), or set TIDEGATE_URL.")
    return Job(
        JobConnection(
            check_url(url),
            check_id("job", job),
            key or os.environ.get("TIDEGATE_TOKEN"),
            config,
            OnOutage.of(on_outage),
            clock,
            partial(HttpTransport, transport=transport),
        )
    )
