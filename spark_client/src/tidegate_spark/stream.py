"""The builder of a coordinated query, modelled on Spark's ``DataStreamWriter``."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from tidegate_spark.arguments import name_given
from tidegate_spark.batch import Committed, table_name
from tidegate_spark.columns import Columns
from tidegate_spark.config import event_time_length
from tidegate_spark.errors import InvalidUsage
from tidegate_spark.frame import Frame
from tidegate_spark.hook.batch_function import REPORT_TASKS
from tidegate_spark.hook.classify import RowRoute
from tidegate_spark.hook.delays import DelayOrder
from tidegate_spark.hook.folding import Mode
from tidegate_spark.hook.handlers import UserFunction, check_function, takes_batch
from tidegate_spark.protocol.checkpoint import Checkpoint
from tidegate_spark.protocol.connection import JobConnection
from tidegate_spark.start import HEARTBEAT_MS, PUBLISH_EVERY_S, QueryStart, StreamOptions, check_start, located
from tidegate_spark.substreams import Values
from tidegate_spark.windows.builder import WindowBuilder, WindowSettings
from tidegate_spark.windows.state import StateStore

Word = TypeVar("Word", bound=str)


@dataclass(frozen=True)
class Stream:
    """A coordinated stream whose query has not been started. Create it with :meth:`Job.stream`.

    All methods except :meth:`windows` and :meth:`start` return a new stream. All methods raise :class:`InvalidUsage` if
    an argument is invalid.
    """

    connection: JobConnection
    frames: set[Frame]
    df: DataFrame
    columns: Columns
    options: StreamOptions = field(default_factory=StreamOptions)

    def _with(self, **changes: Any) -> "Stream":
        return replace(self, options=replace(self.options, **changes))

    # -- rows and results -----------------------------------------------------------------------------------------

    def foreach_batch(self, function: UserFunction) -> "Stream":
        """Call ``function(df, batch_id)`` with the on-time rows of each batch, as Spark's ``foreachBatch`` does.

        A function with a third parameter is called as ``function(df, batch_id, batch)``. ``batch`` is a :class:`Batch`,
        with ``batch.watermark`` and ``batch.job_watermark``. A third parameter with a default keeps the default, unless
        it is named ``batch``.

        With :meth:`windows`, ``df`` has the windows that have closed or changed. If no window has closed or changed,
        the client does not call the function.
        """
        takes_batch("foreach_batch", function)
        return self._with(function=function)

    def late_output(self, function: UserFunction) -> "Stream":
        """Call ``function(df, batch_id)`` with the late rows of each batch that has late rows.

        A third parameter gets the :class:`Batch`, as in :meth:`foreach_batch`. Without a late output, the client drops
        late rows and logs their substreams. The coordinator counts late rows in both cases.
        """
        takes_batch("late_output", function)
        return self._with(late_function=function)

    def null_event_times(self, route: RowRoute) -> "Stream":
        """Choose whether rows without an event time go with the ``late`` rows (default) or the ``on_time`` rows.

        The coordinator counts them as ``null_event_time`` in both cases.
        """
        return self._with(null_route=_checked_word("null_event_times", route, get_args(RowRoute)))

    def future_event_times(self, route: RowRoute) -> "Stream":
        """Choose whether rows of the class ``future`` go with the ``on_time`` rows or the ``late`` rows.

        The event times of these rows are more than ``max_future_skew`` ahead of the clock. The default is ``on_time``,
        or ``late`` with :meth:`windows`. In both cases, the rows move no watermark, and the coordinator counts them as
        ``future``.
        """
        return self._with(future_route=_checked_word("future_event_times", route, get_args(RowRoute)))

    def on_commit(self, function: Callable[[Committed], Any]) -> "Stream":
        """Call ``function`` with a :class:`Committed` after each commit.

        Errors of the function are logged and do not fail the batch.
        """
        check_function("on_commit", function)
        return self._with(on_commit=function)

    def publish_watermark(
        self, table: str | os.PathLike[str], *, every: timedelta = timedelta(seconds=PUBLISH_EVERY_S)
    ) -> "Stream":
        """Write the job's watermark into a table after each commit, and when it moves without a batch.

        The claims of :meth:`Batch.write_once` lag by one batch, and stand still while no batch comes. A published
        watermark does not. It says that the query has written all rows on time below it; with :meth:`windows`, all
        windows that end at it or before. In an Iceberg table it is a property, in a Delta table a commit without rows.
        A call for a second table adds it.

        Args:
            table: A table that the function of :meth:`foreach_batch` writes: its name in a catalog, or the path of a
                Delta table.
            every: Shortest time between two watermarks.

        Raises:
            InvalidUsage: If an argument is invalid. :meth:`start` raises it if the table cannot be used.
        """
        name = table_name("publish_watermark", table)
        if not isinstance(every, timedelta) or every < timedelta(0):
            raise InvalidUsage(f"every must be a timedelta, 0 or more; it is {every!r}.")
        tables = dict.fromkeys((*self.options.published_in, name))
        return self._with(published_in=tuple(tables), publish_every_s=every.total_seconds())

    def show_progress(self) -> "Stream":
        """Print a line for each committed batch."""
        return self._with(show_progress=True)

    # -- windows --------------------------------------------------------------------------------------------------

    def windows(
        self,
        size: timedelta | int,
        slide: timedelta | int | None = None,
        offset: timedelta | int | None = None,
        time_zone: str | None = None,
    ) -> WindowBuilder["Stream"]:
        """Group the rows by windows ``[start, start + size)`` of event time. Call ``.agg(...)`` on the result.

        Lengths are timedeltas if the event times are timestamps, else whole numbers in the unit of the event times.

        Args:
            size: Length of a window.
            slide: Step from one window to the next, at most ``size``; default: ``size``.
            offset: Distance of the window boundaries from the epoch, or with ``time_zone`` from midnight; default: 0.
            time_zone: Time zone such as ``Europe/Berlin``, for windows of a day: each is a day of this time zone, also
                if it has 23 or 25 hours. Default: days of UTC.

        Raises:
            InvalidUsage: If a length has the wrong type, there are gaps between the windows, or a row would be in more
                than 1,000 windows.
        """
        of_timestamps = self.columns.are_timestamps(self.df)
        frame = Frame.of(size, slide, offset, of_timestamps=of_timestamps, time_zone=time_zone)
        return WindowBuilder(frame, self.df.columns, self._with_windows)

    def _with_windows(self, windowed: WindowSettings) -> "Stream":
        # As on-time rows, future rows would keep their windows in the state until the watermark passed the end.
        return self._with(windowed=windowed, future_route="late")

    def allowed_lateness(self, lateness: timedelta | int) -> "Stream":
        """Let closed windows accept rows until the watermark is ``lateness`` beyond their end.

        A window that changes is emitted again, with its earlier result as ``previous``. ``lateness`` is a timedelta if
        the event times are timestamps, else a whole number in the unit of the event times. Call this method after
        ``.windows(...).agg(...)``.
        """
        windowed = self._windowed("allowed_lateness")
        allowed = event_time_length("allowed_lateness", lateness, self.columns.are_timestamps(self.df))
        return self._with(windowed=replace(windowed, lateness=allowed))

    def keep_windows_in(self, store: StateStore) -> "Stream":
        """Keep the state of windows in ``store``; default: files beside the checkpoint.

        Call this method after ``.windows(...).agg(...)``.
        """
        if not all(callable(getattr(store, method, None)) for method in ("write", "read", "delete")):
            raise InvalidUsage(f"keep_windows_in() takes a store with write(), read() and delete(), not {store!r}.")
        return self._with(windowed=replace(self._windowed("keep_windows_in"), store=store))

    def _windowed(self, method: str) -> WindowSettings:
        if self.options.windowed is None:
            raise InvalidUsage(f"{method}() needs windows: call .windows(...).agg(...) before it.")
        return self.options.windowed

    # -- reports --------------------------------------------------------------------------------------------------

    def declare(self, *values: Values) -> "Stream":
        """Declare substreams, so that they hold the watermark before their first row. A second call replaces the first.

        Args:
            values: For each substream, the value of its column, or a tuple of the values of its columns.
        """
        return self._with(declared=tuple(name_given("declare()", value) for value in values))

    def reporting(self, mode: Mode) -> "Stream":
        """Choose which processes report to the coordinator.

        Args:
            mode: ``auto`` (default): the executors report if the batch before had more than 5,000 substreams, which is
                one call; otherwise the driver reports. ``executor``: the executors report. ``driver``: the driver
                reports, so that executors need neither this package nor a connection to the coordinator.

        Raises:
            InvalidUsage: If the mode is unknown.
        """
        return self._with(mode=_checked_word("reporting", mode, get_args(Mode)))

    def complete_batches(self, complete: bool = True) -> "Stream":
        """Declare that each batch contains all input that existed when Spark planned the batch.

        The client needs to know this if the configuration has an ``idle_timeout``: a substream without rows in a batch
        is silent only if the batch contains all input. The offsets tell this for Kafka, and the absence of a limit for
        files. For other sources, and for files with ``maxFilesPerTrigger``, a silent substream otherwise becomes idle
        only when a trigger finds no new data.

        Call this method for a source without a limit on the size of batches that the client does not know, or for a
        replay in which each file contains all rows of an interval and each batch reads one file. If the promise does
        not hold, rows are late.
        """
        return self._with(complete_batches=_checked_flag("complete_batches", complete))

    def measure_delays(self, order: DelayOrder | Literal["none"]) -> "Stream":
        """Measure the delays of rows, for the completeness curve and for ``target_completeness``.

        By default, the client measures delays (``batch``) if the configuration has the policy ``target_completeness``.
        With ``batch``, substreams with shortened or escaped names have no delays. (The client shortens names longer
        than 200 bytes and escapes unprintable characters.)

        Args:
            order: ``batch``: measure against the substream's max event time before the batch. The pinned watermark is
                from the same time. ``row``: measure against the substream's max event time before the row, in the order
                in which a task reads the rows. The result does not depend on the size of batches, but each row passes
                through Python, and the workers need NumPy. ``none``: do not measure.
        """
        return self._with(delays=_checked_word("measure_delays", order, (*get_args(DelayOrder), "none")))

    # -- how the query runs ---------------------------------------------------------------------------------------

    def persist(self, persist: bool) -> "Stream":
        """Choose whether a batch is persisted while it runs, or read again for each use.

        By default, a batch is read again if it comes from files of Parquet or ORC, or from a table of Delta Lake or
        Iceberg, and has passed only through deterministic expressions of Spark. All other batches are persisted, and
        under Spark Connect every batch is. The log names the reason. Choose ``persist(True)`` if your function uses the
        rows many times.
        """
        return self._with(persist=_checked_flag("persist", persist))

    def tuning(self, *, report_tasks: int = REPORT_TASKS, heartbeat_ms: int = HEARTBEAT_MS) -> "Stream":
        """Set the maximum number of tasks that report a batch, and the interval of heartbeats in milliseconds.

        The defaults are 4 and 1000.
        """
        if not all(type(value) is int and value >= 1 for value in (report_tasks, heartbeat_ms)):
            raise InvalidUsage(
                "report_tasks and heartbeat_ms must be whole numbers, 1 or more; they are "
                f"{report_tasks!r} and {heartbeat_ms!r}."
            )
        return self._with(report_tasks=report_tasks, heartbeat_ms=heartbeat_ms)

    def trigger(self, **trigger: Any) -> "Stream":
        """Set the trigger, as ``DataStreamWriter.trigger`` does."""
        if len(trigger) != 1 or not trigger.keys() <= _TRIGGERS:
            raise InvalidUsage(
                f"trigger() takes one of {', '.join(sorted(_TRIGGERS))}, as in trigger(processingTime='10 seconds'), "
                f"and got {', '.join(trigger) or 'none'}."
            )
        return self._with(trigger=trigger)

    def option(self, key: str, value: Any) -> "Stream":
        """Set an option, as ``DataStreamWriter.option`` does."""
        _check_option("option", key)
        return self._with(writer={**self.options.writer, key: value})

    if not TYPE_CHECKING:  # a type checker finds unknown methods itself

        def __getattr__(self, name: str) -> Any:
            """Raise an error that says what replaces a method of Spark, or else an AttributeError."""
            if remedy := _REMEDIES.get(name):
                raise _UnknownMethod(f"A coordinated stream has no {name}: {remedy}.")
            if hasattr(DataFrame, name) and not name.startswith("_"):
                raise _UnknownMethod(
                    f"A coordinated stream has no {name}: apply it to the DataFrame before job.stream(df, ...), or in "
                    "the function of foreach_batch()."
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def start(
        self,
        *,
        queryName: str | None = None,
        checkpointLocation: str | os.PathLike[str] | None = None,
        replaces_substreams: bool = False,
        **options: Any,
    ) -> StreamingQuery:
        """Create the job if it does not exist, and start the query.

        Args:
            queryName: Name of the query in the job, the same at every start: 1 to 128 letters, digits and ``. _ ~ -``,
                but not ``.`` or ``..`` alone.
            checkpointLocation: Checkpoint of the query.
            replaces_substreams: Whether to continue with this checkpoint if ``event_time`` or ``substream`` names other
                columns than before. The query's earlier substreams then no longer hold the watermark.
            options: Options, as for ``DataStreamWriter.options``.

        Raises:
            InvalidUsage: If an argument is missing or invalid, or the query cannot continue with this checkpoint.
            JobMissing: If the job does not exist, and :func:`connect` got no configuration for a new job.
            Refused: If the coordinator refuses a call.
            CoordinatorUnavailable: If the coordinator does not answer within ``on_outage``.
        """
        for option in options:
            _check_option("start", option)
        query, location = check_start("start", queryName, checkpointLocation)
        if self.options.function is None:
            raise InvalidUsage("start() needs a function for the batches: call .foreach_batch(function) before it.")
        if self.options.windowed is not None and self.options.null_route != "late":
            raise InvalidUsage(
                "null_event_times('on_time') cannot be combined with windows: a row without an event time is in no "
                "window. Use null_event_times('late')."
            )
        chosen = replace(self.options, writer={**self.options.writer, **options})
        checkpoint = Checkpoint(located(self.df.sparkSession, location))
        start = QueryStart(self.connection, self.df, self.columns, chosen, query, checkpoint, replaces_substreams)
        running = start.start()
        if self.options.windowed is not None:
            self.frames.add(self.options.windowed.frame)
        return running


class _UnknownMethod(InvalidUsage, AttributeError):
    """A method of Spark that a coordinated stream does not have."""


_TRIGGERS = {"processingTime", "once", "continuous", "availableNow", "realTime"}
_FUNCTION_WRITES = "remove it, because the function of foreach_batch() writes the rows"
_REMEDIES = {
    "foreachBatch": "call foreach_batch(function)",
    "foreach": "call foreach_batch(function), and write the rows of the batch there",
    "queryName": "pass the name to start(queryName=...)",
    "outputMode": _FUNCTION_WRITES,
    "partitionBy": _FUNCTION_WRITES,
    "clusterBy": _FUNCTION_WRITES,
    "format": _FUNCTION_WRITES,
    "writeStream": "call foreach_batch(function) on the stream itself",
    "toTable": "write the table in the function of foreach_batch(), and call start()",
    "options": "pass the options to start(), or call option(key, value) for each",
    "withWatermark": "remove it, because the job has the watermark; Spark's own operators follow job.with_watermark()",
}
"""What to write instead of a method of Spark."""


def _check_option(method: str, key: Any) -> None:
    if not isinstance(key, str):
        raise InvalidUsage(f"{method}() takes the name of an option as a text, not {key!r}.")
    if key.lower() == "checkpointlocation":
        raise InvalidUsage(f"{method}({key!r}, ...) is not supported: pass start(checkpointLocation=...).")
    if (remedy := _REMEDIES.get(key)) and key != "queryName":
        raise InvalidUsage(f"{method}() takes no {key}: {remedy}.")


def _checked_flag(method: str, flag: Any) -> bool:
    if not isinstance(flag, bool):
        raise InvalidUsage(f"{method}() takes True or False, not {flag!r}.")
    return flag


def _checked_word(method: str, word: Word, words: tuple[str, ...]) -> Word:
    if word not in words:
        raise InvalidUsage(f"{method}() takes one of {', '.join(map(repr, words))}, not {word!r}.")
    return word
