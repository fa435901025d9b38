"""From a streaming DataFrame to a coordinated query, in the words of Spark's ``DataStreamWriter``."""

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from tidegate_spark.batch import Committed
from tidegate_spark.errors import InvalidUsage
from tidegate_spark.fold import Columns
from tidegate_spark.heartbeat import IDLE_EVENT_INTERVAL, Heartbeat
from tidegate_spark.hook import BatchFunction, Hook, NullEventTime
from tidegate_spark.ids import checked_id
from tidegate_spark.pins import Pins

if TYPE_CHECKING:
    from tidegate_spark.gate import Gate

REPORT_TASKS = 4
HEARTBEAT_MS = 1000


@dataclass(frozen=True)
class Stream:
    """A stream on its way to becoming a query; each method gives a new one."""

    gate: "Gate"
    df: DataFrame
    columns: Columns
    function: BatchFunction | None = None
    late_function: BatchFunction | None = None
    null_event_time: NullEventTime = "late"
    declared: tuple[str, ...] = ()
    persist: bool = True
    report_tasks: int = REPORT_TASKS
    heartbeat_ms: int = HEARTBEAT_MS
    on_commit_function: Callable[[Committed], Any] | None = None
    trigger_options: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)

    def foreach_batch(self, function: BatchFunction) -> "Stream":
        """``function(df, batch)`` gets the rows that are on time; ``batch`` is the batch id, with more to tell."""
        return replace(self, function=function)

    def late_to(self, function: BatchFunction) -> "Stream":
        """``function(df, batch)`` gets the late rows, as they came, in batches that have any.

        Without it they are dropped: counted, and named in the log.
        """
        return replace(self, late_function=function)

    def null_event_times(self, go: NullEventTime) -> "Stream":
        """Where rows without an event time go: with the ``late`` ones (as by default), or with those ``on_time``.

        They are counted as a class of their own either way.
        """
        if go not in ("late", "on_time"):
            raise InvalidUsage(f"null_event_times takes 'late' or 'on_time'; it is {go!r}.")
        return replace(self, null_event_time=go)

    def declare(self, *names: str) -> "Stream":
        """Names substreams that are to hold the watermark back from the start, before their first row."""
        return replace(self, declared=names)

    def persisted(self, persist: bool) -> "Stream":
        """Whether a batch is kept while it is worked on (as by default), or read again for each use of it.

        Reading again pays where the source is cheap to read and the batch large: pruned Parquet, for one.
        """
        return replace(self, persist=persist)

    def tuned(self, *, report_tasks: int = REPORT_TASKS, heartbeat_ms: int = HEARTBEAT_MS) -> "Stream":
        """``report_tasks``: how many tasks report at the most; ``heartbeat_ms``: how often silence is looked at."""
        if report_tasks < 1 or heartbeat_ms < 1:
            raise InvalidUsage("report_tasks and heartbeat_ms must be 1 or more.")
        return replace(self, report_tasks=report_tasks, heartbeat_ms=heartbeat_ms)

    def on_commit(self, function: Callable[[Committed], Any]) -> "Stream":
        """``function(committed)`` is told of every batch that was committed; it is not part of the batch."""
        return replace(self, on_commit_function=function)

    def trigger(self, **trigger: Any) -> "Stream":
        """As ``DataStreamWriter.trigger``."""
        return replace(self, trigger_options=trigger)

    def option(self, key: str, value: Any) -> "Stream":
        """As ``DataStreamWriter.option``."""
        return replace(self, options={**self.options, key: value})

    def start(self, *, queryName: str, checkpointLocation: str, **options: Any) -> StreamingQuery:
        """Starts the query. ``queryName`` is its stable name in the job: the same after every restart.

        :raises InvalidUsage: for arguments that cannot work.
        :raises JobMissing: where there is no such job, and no rules to create it from.
        """
        if self.function is None:
            raise InvalidUsage("Say what to do with a batch: .foreach_batch(function) before .start().")
        checked_id("queryName", queryName)
        hook = Hook(
            coordinator=self.gate.coordinator,
            rules=self.gate.rules,
            declared=self.declared,
            query=queryName,
            run_id=str(uuid.uuid4()),
            pins=Pins(checkpointLocation),
            columns=self.columns,
            function=self.function,
            late_function=self.late_function,
            null_event_time=self.null_event_time,
            persist=self.persist,
            report_tasks=self.report_tasks,
            on_commit=self.on_commit_function,
        )
        hook.announce()
        writer = (
            self.df.writeStream.foreachBatch(hook)
            .queryName(queryName)
            .option("checkpointLocation", checkpointLocation)
            .options(**{**self.options, **options})
        )
        if self.trigger_options:
            writer = writer.trigger(**self.trigger_options)
        spark = self.df.sparkSession
        heartbeat = Heartbeat(spark, hook)
        spark.streams.addListener(heartbeat)
        # A query takes a copy of the session's settings when it starts; the session's own is put back after that.
        before = spark.conf.get(IDLE_EVENT_INTERVAL, None)
        spark.conf.set(IDLE_EVENT_INTERVAL, f"{self.heartbeat_ms}ms")
        try:
            query = writer.start()
        except BaseException:
            spark.streams.removeListener(heartbeat)
            raise
        finally:
            if before is None:
                spark.conf.unset(IDLE_EVENT_INTERVAL)
            else:
                spark.conf.set(IDLE_EVENT_INTERVAL, before)
        heartbeat.listen_to(str(query.runId))
        return query
