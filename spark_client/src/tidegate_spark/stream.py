"""From a streaming DataFrame to a coordinated query, in the terms of Spark's ``DataStreamWriter``."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Literal, TypeVar

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from tidegate_spark.batch import Committed
from tidegate_spark.columns import Columns
from tidegate_spark.config import event_time_length
from tidegate_spark.errors import InvalidUsage
from tidegate_spark.frame import Frame
from tidegate_spark.hook.batch_function import REPORT_TASKS
from tidegate_spark.hook.classify import RowRoute
from tidegate_spark.hook.delays import DelayOrder
from tidegate_spark.hook.fold import Mode
from tidegate_spark.hook.handler import UserFunction
from tidegate_spark.protocol.checkpoint import Checkpoint
from tidegate_spark.protocol.connection import JobConnection
from tidegate_spark.start import HEARTBEAT_MS, QueryStart, StreamOptions, check_start
from tidegate_spark.substreams import Values, name_of
from tidegate_spark.windows.builder import WindowBuilder, WindowSettings
from tidegate_spark.windows.state import StateStore

Word = TypeVar("Word", bound=str)

MODES = ("executor", "driver", "observe")
ROUTES = ("late", "on_time")
DELAYS = ("batch", "row", "none")


@dataclass(frozen=True)
class Stream:
    """A stream before its query is started. Each method returns a new one."""

    connection: JobConnection
    frames: set[Frame]
    df: DataFrame
    columns: Columns
    options: StreamOptions = field(default_factory=StreamOptions)

    def _with(self, **changes: Any) -> "Stream":
        return replace(self, options=replace(self.options, **changes))

    # -- rows and results -----------------------------------------------------------------------------------------

    def foreach_batch(self, function: UserFunction) -> "Stream":
        """Call ``function(df, batch)`` with the rows that are on time.

        ``batch`` is the batch id, and also carries ``batch.watermark`` and ``batch.job_watermark``. With
        :meth:`windows`, the function gets the windows that have closed or changed, in batches that have any.
        """
        return self._with(function=_checked_function("foreach_batch", function))

    def late_output(self, function: UserFunction) -> "Stream":
        """Call ``function(df, batch)`` with the late rows, in batches that have any: the side output.

        Without it, late rows are dropped. The coordinator counts them, and the log names their substreams.
        """
        return self._with(late_function=_checked_function("late_output", function))

    def null_event_times(self, route: RowRoute) -> "Stream":
        """Choose where rows without an event time go: with the ``late`` ones (default), or with those ``on_time``.

        They are counted as a class of their own in any case.
        """
        return self._with(null_route=_checked_word("null_event_times", route, ROUTES))

    def future_event_times(self, route: RowRoute) -> "Stream":
        """Choose where rows go whose event time is further ahead of the clock than ``max_future_skew``.

        They go with those ``on_time`` (default) or with the ``late`` ones. In any case they move no watermark and are
        counted as a class of their own.
        """
        return self._with(future_route=_checked_word("future_event_times", route, ROUTES))

    def on_commit(self, function: Callable[[Committed], Any]) -> "Stream":
        """Call ``function(committed)`` after each commit. Its errors are logged and do not fail the batch."""
        return self._with(on_commit=_checked_function("on_commit", function))

    def show_progress(self) -> "Stream":
        """Print a line about each committed batch."""
        return self._with(show_progress=True)

    # -- windows --------------------------------------------------------------------------------------------------

    def windows(
        self, size: timedelta | int, slide: timedelta | int | None = None, offset: timedelta | int | None = None
    ) -> WindowBuilder["Stream"]:
        """Make windows ``[start, start + size)``; choose their results with ``.agg(...)``.

        Lengths are timedeltas if the event times are timestamps, else whole numbers in the unit of the event times.

        Args:
            size: Length of a window.
            slide: Step from one window to the next; default: ``size``.
            offset: Distance of the boundaries from the epoch; default: 0.

        Raises:
            InvalidUsage: There are gaps between the windows, or a length has another unit.
        """
        frame = Frame.of(size, slide, offset, of_timestamps=self.columns.are_timestamps(self.df))
        return WindowBuilder(frame, self.df.columns, self._with_windows)

    def _with_windows(self, windowed: WindowSettings) -> "Stream":
        # A window far ahead of the clock would be kept until its time has come.
        return self._with(windowed=windowed, future_route="late")

    def allowed_lateness(self, lateness: timedelta | int) -> "Stream":
        """Let a closed window take rows until the watermark is ``lateness`` beyond its end. Only with :meth:`windows`.

        A window that changes is given out again, with its earlier result as ``previous``.
        """
        windowed = self._windowed("allowed_lateness")
        allowed = event_time_length("allowed_lateness", lateness, self.columns.are_timestamps(self.df))
        return self._with(windowed=replace(windowed, lateness=allowed))

    def keep_windows_in(self, store: StateStore) -> "Stream":
        """Store windows elsewhere than in Parquet files beside the checkpoint. Only with :meth:`windows`."""
        return self._with(windowed=replace(self._windowed("keep_windows_in"), store=store))

    def _windowed(self, method: str) -> WindowSettings:
        if self.options.windowed is None:
            raise InvalidUsage(f"{method} is for windows: .windows(...).agg(...) comes before it.")
        return self.options.windowed

    # -- what the coordinator learns ------------------------------------------------------------------------------

    def declare(self, *values: Values) -> "Stream":
        """Declare substreams, so that they hold the watermark before their first row.

        Args:
            values: For each substream the value of its column, or a tuple of the values of its columns.
        """
        return self._with(declared=tuple(map(name_of, values)))

    def reporting(self, mode: Mode) -> "Stream":
        """Choose who reports to the coordinator.

        Args:
            mode: ``executor`` (default): each executor reports what it folded. ``driver``: the driver reports, so that
                executors need neither this package nor a connection to the coordinator. ``observe``: the driver
                reports, for a stream that is one substream (``substream=None``), without a shuffle by substream.

        Raises:
            InvalidUsage: The mode is unknown, or ``observe`` is chosen for several substreams.
        """
        _checked_word("reporting", mode, MODES)
        if mode == "observe" and self.columns.substream is not None:
            raise InvalidUsage("reporting('observe') is for a stream that is one substream: substream=None.")
        return self._with(mode=mode)

    def rate_limited_source(self, limited: bool = True) -> "Stream":
        """Say whether the source limits the size of batches (``maxFilesPerTrigger``, ``maxOffsetsPerTrigger``, ...).

        A batch of such a source is no evidence that a substream without rows is idle: its rows may be in the next
        batch. Only a trigger without new data is. Set it if the configuration has an ``idle_timeout``.

        By default, a batch is taken to contain all input that existed when it began. Under ``availableNow`` that is
        all input that existed when the run began. ``False`` says that each batch is complete under ``availableNow``
        too, as in a replay whose files stand for moments.
        """
        return self._with(rate_limited=limited)

    def measure_delays(self, order: DelayOrder | Literal["none"]) -> "Stream":
        """Measure how late rows are, for the completeness curve and for ``target_completeness``.

        By default delays are measured if the configuration needs them. Substreams whose values cannot be names as they
        are (longer than 200 bytes, or unprintable) have no delays.

        Args:
            order: ``batch``: against the max event time of the substream before the batch, which decides whether a row
                is late. ``row``: before the row, in the order in which a task reads them, so that the size of batches
                does not matter; each row then passes through Python, and the workers need NumPy. ``none``: not at all.
        """
        return self._with(delays=_checked_word("measure_delays", order, DELAYS))

    # -- how the query runs ---------------------------------------------------------------------------------------

    def persist(self, persist: bool) -> "Stream":
        """Choose whether a batch is cached while it runs (default), or read again for each use.

        Reading again is faster if the source is cheap to read and the batch is large, for example pruned Parquet.
        """
        return self._with(persist=persist)

    def tuning(self, *, report_tasks: int = REPORT_TASKS, heartbeat_ms: int = HEARTBEAT_MS) -> "Stream":
        """Set the most tasks that report a batch, and the interval of heartbeats."""
        if report_tasks < 1 or heartbeat_ms < 1:
            raise InvalidUsage("report_tasks and heartbeat_ms must be 1 or more.")
        return self._with(report_tasks=report_tasks, heartbeat_ms=heartbeat_ms)

    def trigger(self, **trigger: Any) -> "Stream":
        """Set the trigger, as ``DataStreamWriter.trigger`` does."""
        return self._with(trigger=trigger)

    def option(self, key: str, value: Any) -> "Stream":
        """Set an option, as ``DataStreamWriter.option`` does."""
        return self._with(writer={**self.options.writer, key: value})

    def start(
        self,
        *,
        queryName: str | None = None,
        checkpointLocation: str | os.PathLike[str] | None = None,
        replaces_substreams: bool = False,
        **options: Any,
    ) -> StreamingQuery:
        """Start the query.

        Args:
            queryName: Name of the query in the job, the same at every start.
            checkpointLocation: Checkpoint of the query.
            replaces_substreams: Continue with this checkpoint although ``event_time`` or ``substream`` names other
                columns than before. The job no longer waits for the substreams that the query had.
            options: Options, as ``DataStreamWriter.options`` takes them.

        Raises:
            InvalidUsage: An argument cannot work, or the query cannot continue with this checkpoint.
            JobMissing: There is no such job, and no configuration to create it from.
        """
        query, location = check_start("start", queryName, checkpointLocation)
        if self.options.function is None:
            raise InvalidUsage("Say what to do with a batch: .foreach_batch(function) before .start().")
        if self.options.windowed is not None and self.options.null_route != "late":
            raise InvalidUsage("A row without an event time is in no window: null_event_times('late').")
        chosen = replace(self.options, writer={**self.options.writer, **options})
        start = QueryStart(
            self.connection, self.df, self.columns, chosen, query, Checkpoint(location), replaces_substreams
        )
        running = start.start()
        if self.options.windowed is not None:
            self.frames.add(self.options.windowed.frame)
        return running


def _checked_function(method: str, function: Any) -> Any:
    if not callable(function):
        raise InvalidUsage(f"{method} takes a function; it is {function!r}.")
    return function


def _checked_word(method: str, word: Word, words: tuple[str, ...]) -> Word:
    if word not in words:
        raise InvalidUsage(f"{method} takes one of {', '.join(map(repr, words))}; it is {word!r}.")
    return word
