"""The connection to one job of a coordinator."""

import os
from datetime import datetime, timedelta
from functools import partial
from typing import Literal, Unpack

import httpx
from pyspark.sql import DataFrame

from tidegate_spark.actions import JobActions
from tidegate_spark.arguments import names_of, time_number
from tidegate_spark.clock import SYSTEM_CLOCK, Clock
from tidegate_spark.columns import Columns, check_stream
from tidegate_spark.config import JobConfig, check_config, check_id
from tidegate_spark.errors import InvalidUsage
from tidegate_spark.frame import Frame
from tidegate_spark.native.options import NativeOptions, delay_of, frame_of
from tidegate_spark.protocol.connection import JobConnection
from tidegate_spark.protocol.retry import DEFAULT_ON_OUTAGE, OnOutage
from tidegate_spark.protocol.transport import HttpTransport, check_key, check_url
from tidegate_spark.spark_session import check_native, check_session
from tidegate_spark.start import check_start
from tidegate_spark.stream import Stream
from tidegate_spark.substreams import Substream


class Job(JobActions):
    """A job of a coordinator. Create it with :func:`connect`.

    :meth:`stream` and :meth:`with_watermark` coordinate queries. The other methods call the coordinator to manage the
    job, and state which roles a key may have. These methods raise:

    * :class:`JobMissing` if the job does not exist,
    * :class:`Refused` if the coordinator refuses the call,
    * :class:`CoordinatorUnavailable` if it does not answer within ``on_outage`` (``"continue"``: 10 minutes).

    Attributes:
        connection: The connection to the job.
        windows: The windows of the queries that were started from this object.
    """

    def __init__(self, connection: JobConnection) -> None:
        super().__init__(connection)
        self.windows: set[Frame] = set()

    def stream(self, df: DataFrame, *, event_time: str, substream: Substream) -> Stream:
        """Return a stream that this job coordinates. The client sends no request before :meth:`Stream.start`.

        Role of the key: ``report`` or ``admin``.

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
        check_stream("stream", df)
        check_session(df.sparkSession)
        columns = Columns(event_time, substream)
        columns.check(df)
        return Stream(self.connection, self.windows, df, columns)

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

        Role of the key: ``report`` or ``admin``.

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
        check_stream("with_watermark", df)
        check_native(df.sparkSession)
        # PySpark 3.5 has no data sources in Python, so the module cannot be imported there.
        from tidegate_spark.native.following import NativeStream

        query, location = check_start("with_watermark", queryName, checkpointLocation)
        frame, declared = frame_of(options), names_of("declare", options.get("declare", ()))
        columns = Columns(event_time, substream)
        delay_ms = delay_of(options, self.connection.config)
        native = NativeStream(self.connection, df, columns, query, location, frame, declared, delay_ms, options)
        followed = native.follow()
        if frame is not None:
            self.windows.add(frame)
        return followed

    def complete(self, reason: str = "", up_to: datetime | int | None = None, force: bool = False) -> int | None:
        """Declare the end of the input: move the watermark above every event time seen, and freeze the job.

        Role of the key: ``operate`` or ``admin``.

        Args:
            reason: Text that the coordinator records with the action.
            up_to: Lowest value for the watermark: a datetime with a time zone, or a number in the unit of the event
                times. Default: the end of the last window that contains the max event time, over all windows of queries
                started from this object. With :meth:`with_watermark`, other Spark operators may keep state beyond this
                end (the time bound of a join, a timer). To have that state emitted, pass a value beyond its end.
            force: Whether to accept a number that looks like seconds or microseconds in place of milliseconds.

        Returns:
            The emitted watermark; None if the job has none.

        Raises:
            InvalidUsage: If ``up_to`` has no time zone.
            Refused: If a batch is open, or a hold is in force.
        """
        end = None if up_to is None else time_number("up_to", up_to, round_up=True)
        if end is None and self.windows:
            max_event_time = self.status()["max_event_time"]
            if max_event_time is not None:
                end = max(frame.cut_at_the_end(max_event_time + 1) for frame in self.windows)
                force = True  # the end follows from the event times of the job, whatever their unit is
        watermark: int | None = self._act(":complete", reason=reason, up_to=end, force=force)["watermark"]
        return watermark


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
        job: Name of the job: 1 to 128 letters, digits and ``. _ ~ -``, but not ``.`` or ``..`` alone.
        config: Configuration of a new job, as :func:`limiting_lag` returns it. None: the job must exist.
        key: Bearer key; default: environment variable ``TIDEGATE_TOKEN``.
        on_outage: Time for which a batch waits for an unavailable coordinator before its query fails; default: ten
            minutes. With ``"continue"``, the batch continues with the pinned watermark of the previous batch and is
            reported later.
        transport: httpx transport for the driver's requests. Executors use their own connections.
        clock: The driver's clock, for tests.

    Raises:
        InvalidUsage: If the address is missing, or an argument is invalid.
    """
    url = os.environ.get("TIDEGATE_URL") if url is None else url
    if url in (None, ""):
        raise InvalidUsage("The address is missing: call connect('http://host:8000', ...), or set TIDEGATE_URL.")
    if transport is not None and not isinstance(transport, httpx.BaseTransport):
        raise InvalidUsage(f"transport must be an httpx.BaseTransport; it is {transport!r}.")
    return Job(
        JobConnection(
            check_url(url),
            check_id("job", job),
            check_key(key or os.environ.get("TIDEGATE_TOKEN") or None),
            None if config is None else check_config("config", config),
            OnOutage.of(on_outage),
            clock,
            partial(HttpTransport, transport=transport),
        )
    )
