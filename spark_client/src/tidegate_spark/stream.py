"""From a streaming DataFrame to a coordinated query, in the words of Spark's ``DataStreamWriter``."""

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from tidegate_spark.batch import Committed
from tidegate_spark.checkpoint import Checkpoint
from tidegate_spark.choice import Choice
from tidegate_spark.columns import Columns
from tidegate_spark.config import in_the_unit
from tidegate_spark.delivery import Delivery, settled
from tidegate_spark.errors import InvalidUsage
from tidegate_spark.fold import Mode
from tidegate_spark.heartbeat import Heartbeat
from tidegate_spark.hook import BatchFunction, Hook
from tidegate_spark.ids import checked_id
from tidegate_spark.judgement import Goes
from tidegate_spark.measuring import Order
from tidegate_spark.pinned_watermarks import KEPT, PinnedWatermarks
from tidegate_spark.session import BATCHES_RETAINED, IDLE_EVENT_INTERVAL, setting
from tidegate_spark.substreams import Values, name_of
from tidegate_spark.versions import AVAILABLE_NOW_OF_PYTHON_SOURCES, PYTHON_SOURCES, is_connect, version_of
from tidegate_spark.windows.builder import Windowed, WindowsOf
from tidegate_spark.windows.frame import Frame
from tidegate_spark.windows.parquet import ParquetState
from tidegate_spark.windows.state import StateStore
from tidegate_spark.windows.windowing import Windowing

if TYPE_CHECKING:
    from tidegate_spark.job import Job

log = logging.getLogger("tidegate")

Word = TypeVar("Word", bound=str)

REPORT_TASKS = 4
HEARTBEAT_MS = 1000
MODES = ("executor", "driver", "observe")
GOES = ("late", "on_time")
DELAYS = ("batch", "row", "none")


@dataclass(frozen=True)
class Stream:
    """A stream on its way to becoming a query; each method gives a new one."""

    job: "Job"
    df: DataFrame
    columns: Columns
    windowed: Windowed | None = None
    function: BatchFunction | None = None
    late_function: BatchFunction | None = None
    null_goes: Goes = "late"
    future_goes: Goes = "on_time"
    declared: tuple[str, ...] = ()
    mode: Mode = "executor"
    persisted: bool = True
    limited: bool | None = None
    report_tasks: int = REPORT_TASKS
    heartbeat_ms: int = HEARTBEAT_MS
    progress: bool = False
    measured: Order | Literal["none"] | None = None
    on_commit_function: Callable[[Committed], Any] | None = None
    trigger_options: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)

    def foreach_batch(self, function: BatchFunction) -> "Stream":
        """``function(df, batch)`` gets the rows that are on time; ``batch`` is the batch id, with more to tell.

        With :meth:`windows`, it gets the windows that have closed, or have changed since, in batches that have any.
        """
        return replace(self, function=_function("foreach_batch", function))

    def windows(
        self, size: timedelta | int, slide: timedelta | int | None = None, offset: timedelta | int | None = None
    ) -> WindowsOf:
        """Windows ``[start, start + size)``, one every ``slide`` (``size`` by default), ``offset`` (0) from the epoch.

        Timedeltas where event times are timestamps, else whole numbers in their unit. Say what to make of them:
        ``.windows(...).agg(...)``.

        :raises InvalidUsage: for windows with gaps between them, or of another unit.
        """
        frame = Frame.of(size, slide, offset, of_timestamps=self.columns.are_timestamps(self.df))
        return WindowsOf(self, frame)

    def allowed_lateness(self, lateness: timedelta | int) -> "Stream":
        """For how much longer a window takes rows after it was closed: until the watermark is so far beyond its end.

        It is then given out again, with its result so far as ``previous``. Only with :meth:`windows`.
        """
        windowed = self._of_windows("allowed_lateness")
        allowed = in_the_unit("allowed_lateness", lateness, self.columns.are_timestamps(self.df))
        return replace(self, windowed=replace(windowed, lateness=allowed))

    def keep_windows_in(self, store: StateStore) -> "Stream":
        """Keeps windows between batches elsewhere than in Parquet files beside the checkpoint. Only with
        :meth:`windows`.
        """
        return replace(self, windowed=replace(self._of_windows("keep_windows_in"), store=store))

    def _of_windows(self, method: str) -> Windowed:
        if self.windowed is None:
            raise InvalidUsage(f"{method} is for windows: .windows(...).agg(...) comes before it.")
        return self.windowed

    def late_output(self, function: BatchFunction) -> "Stream":
        """``function(df, batch)`` gets the late rows, as they came, in batches that have any: the side output.

        Without it they are dropped: counted at the coordinator, and named in the log.
        """
        return replace(self, late_function=_function("late_output", function))

    def null_event_times(self, go: Goes) -> "Stream":
        """Where rows without an event time go: with the ``late`` ones (as by default), or with those ``on_time``.

        They are counted as a class of their own either way.
        """
        return replace(self, null_goes=_checked("null_event_times", go, GOES))

    def future_event_times(self, go: Goes) -> "Stream":
        """Where rows go whose event times are further ahead of the clock than the rules' ``max_future_skew``: with
        those ``on_time`` (as by default), or with the ``late`` ones.

        They move no watermark, and are counted as a class of their own, either way.
        """
        return replace(self, future_goes=_checked("future_event_times", go, GOES))

    def declare(self, *values: Values) -> "Stream":
        """Substreams that are to hold the watermark back from the start, before their first row.

        Each by the value of its column, or by a tuple of the values of its columns.
        """
        return replace(self, declared=tuple(map(name_of, values)))

    def reporting(self, mode: Mode) -> "Stream":
        """Who reports. ``executor`` (as by default): the executors, each what it folded. ``driver``: the driver, so
        that executors need neither this package nor a way to the coordinator. ``observe``: the driver, for a stream
        that is one substream (``substream=None``), from one aggregate without a shuffle by substream.

        :raises InvalidUsage: for another word; for ``observe`` where there are several substreams.
        """
        _checked("reporting", mode, MODES)
        if mode == "observe" and self.columns.substream is not None:
            raise InvalidUsage("reporting('observe') is for a stream that is one substream: substream=None.")
        return replace(self, mode=mode)

    def persist(self, persist: bool) -> "Stream":
        """Whether a batch is kept while it is worked on (as by default), or read again for each use of it.

        Reading again pays where the source is cheap to read and the batch large: pruned Parquet, for one.
        """
        return replace(self, persisted=persist)

    def rate_limited_source(self, limited: bool = True) -> "Stream":
        """Says that the source hands out only so much a batch (``maxFilesPerTrigger``, ``maxOffsetsPerTrigger``, ...).

        Then a batch without rows of a substream does not show that it was silent, for they may be in the next one;
        only a look that finds nothing new shows that. To be said where rules have an ``idle_timeout``.

        Otherwise a batch is taken to have all that was there as it began, or, under ``availableNow``, as the run did.
        False says that it is so for each batch under ``availableNow``, too: in a replay whose files stand for moments.
        """
        return replace(self, limited=limited)

    def measure_delays(self, order: Order | Literal["none"]) -> "Stream":
        """Measures how far rows come behind, for the curve of latency against completeness, and for rules that aim at
        a completeness. Without this, it is done where the rules need it.

        ``batch``: behind the highest event time that their substream had before the batch, which is what decides
        whether they are late. ``row``: before the row, in the order in which a task reads them, so that it does not
        depend on how large batches are; every row then goes through Python, and the workers need NumPy. ``none``: not.

        The coordinator takes no names of substreams but those of their values: of values that are no names as they are
        (longer than 200 bytes, or not to be printed) delays are not measured.
        """
        return replace(self, measured=_checked("delays", order, DELAYS))

    def tuning(self, *, report_tasks: int = REPORT_TASKS, heartbeat_ms: int = HEARTBEAT_MS) -> "Stream":
        """``report_tasks``: how many tasks report at the most; ``heartbeat_ms``: how often silence is looked at."""
        if report_tasks < 1 or heartbeat_ms < 1:
            raise InvalidUsage("report_tasks and heartbeat_ms must be 1 or more.")
        return replace(self, report_tasks=report_tasks, heartbeat_ms=heartbeat_ms)

    def on_commit(self, function: Callable[[Committed], Any]) -> "Stream":
        """``function(committed)`` is told of every batch that was committed; it is not part of the batch."""
        return replace(self, on_commit_function=_function("on_commit", function))

    def trigger(self, **trigger: Any) -> "Stream":
        """As ``DataStreamWriter.trigger``."""
        return replace(self, trigger_options=trigger)

    def option(self, key: str, value: Any) -> "Stream":
        """As ``DataStreamWriter.option``."""
        return replace(self, options={**self.options, key: value})

    def show_progress(self) -> "Stream":
        """Prints a line about every batch that was committed."""
        return replace(self, progress=True)

    def start(
        self,
        *,
        queryName: str | None = None,
        checkpointLocation: str | os.PathLike[str] | None = None,
        replaces_substreams: bool = False,
        **options: Any,
    ) -> StreamingQuery:
        """Starts the query. ``queryName`` is its stable name in the job: the same after every restart.

        ``replaces_substreams``: go on with this checkpoint although ``event_time`` or ``substream`` names other columns
        than before. The job no longer waits for the substreams that the query had.

        :raises InvalidUsage: for arguments that cannot work, and for choices that this checkpoint cannot go on with.
        :raises JobMissing: where there is no such job, and no rules to create it from.
        """
        query_name, location = given("start", queryName, checkpointLocation)
        if self.function is None:
            raise InvalidUsage("Say what to do with a batch: .foreach_batch(function) before .start().")
        if self.windowed is not None and self.null_goes != "late":
            raise InvalidUsage("A row without an event time is in no window: null_event_times('late').")
        checked_id("queryName", query_name)
        spark = self.df.sparkSession
        checkpoint = Checkpoint(location)
        retained = int(spark.conf.get(BATCHES_RETAINED) or 0)
        pinned_watermarks = PinnedWatermarks(checkpoint, max(KEPT, retained))
        here = not is_connect(spark)
        settles = settled(self.limited, bool(self.trigger_options.get("availableNow")))
        delivery = Delivery(
            self.job,
            query_name,
            self.declared,
            checkpoint,
            pinned_watermarks,
            settles,
            here,
            self._choice(),
            replaces_substreams,
        )
        hook = Hook(
            delivery=delivery,
            columns=self.columns,
            mode=self.mode,
            function=self._into_windows(checkpoint),
            late_function=self.late_function,
            null_goes=self.null_goes,
            future_goes=self.future_goes,
            persist=self.persisted,
            report_tasks=self.report_tasks,
            of_timestamps=self.columns.are_timestamps(self.df),
            progress=self.progress,
            delays=self.measured,
            on_commit=self.on_commit_function,
        )
        delivery.start()
        source = self._with_markers(checkpoint)
        if self.windowed is not None:
            self.job.frames.add(self.windowed.frame)
        writer = (
            source.writeStream.foreachBatch(hook)
            .queryName(query_name)
            .option("checkpointLocation", location)
            .options(**{**self.options, **options})
        )
        if self.trigger_options:
            writer = writer.trigger(**self.trigger_options)
        heartbeat = Heartbeat(spark, delivery)
        spark.streams.addListener(heartbeat)
        try:
            # A query takes a copy of the session's settings when it starts.
            with setting(spark, IDLE_EVENT_INTERVAL, f"{self.heartbeat_ms}ms"):
                query = writer.start()
        except BaseException:
            heartbeat.leave()
            raise
        # Spark waits for the function of a batch that is under way, and that may be waiting for its coordinator.
        delivery.coordinator.stopped = lambda: not query.isActive
        heartbeat.listen_to(query)
        delivery.started()
        return query

    def _choice(self) -> Choice:
        windowed = self.windowed
        if windowed is None:
            return Choice.of(self.columns.event_time, self.columns.substream)
        frame = windowed.frame
        return Choice.of(
            self.columns.event_time,
            self.columns.substream,
            (frame.size, frame.slide, frame.offset),
            (windowed.by, sorted(f"{name}={aggregate.kind}" for name, aggregate in windowed.aggregates.items())),
        )

    def _into_windows(self, checkpoint: Checkpoint) -> BatchFunction | Windowing:
        assert self.function is not None
        if self.windowed is None:
            return self.function
        windowed = self.windowed
        kind = self.df.schema[self.columns.event_time].dataType
        store = windowed.store or ParquetState(checkpoint)
        return Windowing(
            windowed.frame,
            windowed.by,
            windowed.aggregates,
            windowed.lateness,
            self.columns,
            kind,
            self.function,
            checkpoint,
            store,
        )

    def _with_markers(self, checkpoint: Checkpoint) -> DataFrame:
        """With windows, a stream that has a batch when only the watermark moves, too."""
        if self.windowed is None:
            return self.df
        spark = self.df.sparkSession
        without = version_of(spark) < PYTHON_SOURCES
        # A client of Spark Connect may not be able to read the checkpoint.
        had_markers = None if is_connect(spark) else checkpoint.has_markers()
        if had_markers is not None and had_markers == without:
            other = "4.0 or later" if without else "3.5"
            raise InvalidUsage(
                f"This checkpoint was started on Spark {other}, where a query with windows has other sources. "
                "Start with a new checkpoint, after job.hand_over() of the query to itself."
            )
        if without:
            log.warning(
                "%s: Spark %s runs no batch when only the watermark moves. Windows close with the next batch that has "
                "rows, and those that are open at complete() are not given out. Spark 4.0 and later need no rows.",
                self.job.coordinator.job,
                spark.version,
            )
            return self.df
        if self.trigger_options.get("availableNow") and version_of(spark) < AVAILABLE_NOW_OF_PYTHON_SOURCES:
            log.warning(
                "%s: Spark %s runs windows under availableNow as a single batch and ignores limits such as "
                "maxFilesPerTrigger. For several batches, use Spark 4.2 or later, or a processing-time trigger.",
                self.job.coordinator.job,
                spark.version,
            )
        # Not for PySpark 3.5, which has no data sources in Python.
        from tidegate_spark.windows.marked import markers_of

        return self.df.union(markers_of(self.job.coordinator, self.df, self.windowed.frame))


def given(method: str, query: str | None, checkpoint: str | os.PathLike[str] | None) -> tuple[str, str]:
    """Return the name of a query and its checkpoint.

    Raises:
        InvalidUsage: If one of them is missing.
    """
    if query is None:
        raise InvalidUsage(f"{method}() needs queryName: the name of the query in the job, the same at every start.")
    if checkpoint is None:
        raise InvalidUsage(f"{method}() needs checkpointLocation: pinned watermarks are kept beside the checkpoint.")
    return query, os.fspath(checkpoint)


def _function(method: str, function: Any) -> Any:
    if not callable(function):
        raise InvalidUsage(f"{method} takes a function; it is {function!r}.")
    return function


def _checked(method: str, word: Word, words: tuple[str, ...]) -> Word:
    if word not in words:
        raise InvalidUsage(f"{method} takes one of {', '.join(map(repr, words))}; it is {word!r}.")
    return word
