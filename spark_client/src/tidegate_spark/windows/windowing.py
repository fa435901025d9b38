"""Windowed aggregates over many batches. Each batch is merged with the state, and windows are emitted as they close.

Before the commit, the rows of a batch are merged with the state's previous version. After the commit, the job's
coalesced watermark determines which windows are closed. The client stores the end of the last closed window in the
*version* of the batch before it emits windows, so that a replay emits the same results.

Invariants:

1. The version of a batch derives from the batch's rows and the latest version of an earlier batch.
2. A window is emitted with all its rows when it closes, and again after each batch that changes it.
3. The version of a batch has the windows that accept rows, and the windows that the batch has closed.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructType

from tidegate_spark.batch import Batch
from tidegate_spark.columns import column, from_time
from tidegate_spark.errors import InvalidUsage
from tidegate_spark.hook.classify import RowClassifier, is_future
from tidegate_spark.hook.handlers import AfterCommit, BatchHandler, BatchRows, UserFunction, call_user
from tidegate_spark.protocol.checkpoint import Checkpoint
from tidegate_spark.spark_settings import ADAPTIVE, setting
from tidegate_spark.windows.builder import RESERVED_PREFIX, WindowSettings
from tidegate_spark.windows.state import FileState

VERSIONS_KEPT = 10
"""Number of versions that are kept. Spark replays the last batch; a restored checkpoint replays an earlier one."""

_KIND = "windows"
_START, _TOUCHED, _BEFORE = (f"{RESERVED_PREFIX}{name}" for name in ("start", "touched", "before"))


@dataclass(frozen=True, slots=True)
class Version:
    """The state after a batch.

    Attributes:
        rows_of: The batch under whose number the rows are stored; None if the state has no rows.
        closed: End of the last closed window; None if no window is closed.
        closed_before: ``closed`` of the previous version.
        layout: The windows, columns and types of the rows, as text; None if the state has no rows.
        planned_ms: Time at which Spark planned the batch (epoch milliseconds). A restored checkpoint may have another
            batch with the same number, planned at another time.
    """

    rows_of: int | None
    closed: int | None
    closed_before: int | None
    layout: str | None
    planned_ms: int | None


EMPTY = Version(None, None, None, None, None)


@dataclass(frozen=True, slots=True)
class MergedBatch:
    """A batch whose rows are merged with the state.

    Attributes:
        spark: The session of the batch.
        batch: The batch.
        before: The version that the rows were merged with.
        found: The version that an earlier attempt of the batch has written; None if no attempt has written one.
        rows_of: As in :class:`Version`.
        layout: As in :class:`Version`.
        updates: Whether the batch may have changed a window that was closed before.
    """

    spark: SparkSession
    batch: Batch
    before: Version
    found: Version | None
    rows_of: int | None
    layout: str | None
    updates: bool


class Windowing(BatchHandler):
    """The batch handler of a query with windows.

    Args:
        settings: The windows.
        kind: Type of the event time.
        function: The user's function for results.
        checkpoint: The checkpoint that stores the versions.
    """

    def __init__(
        self, settings: WindowSettings, kind: DataType, function: UserFunction, checkpoint: Checkpoint
    ) -> None:
        self.frame = settings.frame
        self.lateness = settings.lateness
        self._windows, self._by, self._aggregates = settings.frame, settings.by, settings.aggregates
        self._kind, self._function, self._checkpoint = kind, function, checkpoint
        self._store = settings.store or FileState(checkpoint)
        self._parts = [f"{RESERVED_PREFIX}part_{index}" for index in range(len(settings.aggregates))]

    # -- rows -----------------------------------------------------------------------------------------------------

    def handle(self, rows: BatchRows) -> AfterCommit:
        """Merge the rows of a batch; after the commit, emit the windows that close.

        Raises:
            InvalidUsage: If the state is missing, or belongs to other windows.
        """
        return partial(self._close, self._merge(rows), self._windows.cut)

    def end(self, spark: SparkSession, batch: Batch, watermark: int | None) -> None:
        """Emit the last windows."""
        self._close(self._without_rows(spark, batch), self._windows.cut_at_the_end, watermark)

    def _merge(self, rows: BatchRows) -> MergedBatch:
        batch, fold = rows.batch, rows.fold
        merged = self._without_rows(rows.df.sparkSession, batch)
        before, found = merged.before, merged.found
        # If windows overlap, some of them may accept a late row.
        overlapping = fold.count("late") if self._windows.slide < self._windows.size else 0
        # A pinned watermark that was assumed in an outage may be below the end of a closed window.
        behind = before.closed is not None and (batch.watermark is None or batch.watermark < before.closed)
        merged = replace(merged, updates=behind or fold.count("updated") + overlapping > 0)
        if found is not None:
            return replace(merged, rows_of=found.rows_of, layout=found.layout)
        late = sum(rows.routed_late.values())
        if sum(fold.rows) - late + overlapping == 0:
            return merged
        parts = self._parts_of(rows)
        layout = self._layout(parts.schema)
        if before.layout not in (None, layout):
            raise InvalidUsage(
                f"The checkpoint has {before.layout}, but the query has {layout}. To change windows or aggregates, "
                "start the query on a new checkpoint."
            )
        with setting(merged.spark, ADAPTIVE, "true"):
            self._store.write(int(batch), self._merge_parts(parts, before, rows.classifier))
        return replace(merged, rows_of=int(batch), layout=layout)

    def _without_rows(self, spark: SparkSession, batch: Batch) -> MergedBatch:
        before, found = self._latest_below(batch), self._found(batch)
        return MergedBatch(spark, batch, before, found, before.rows_of, before.layout, updates=False)

    def _parts_of(self, rows: BatchRows) -> DataFrame:
        """Return the partial aggregates of a batch's rows, by window start and keys."""
        df, classifier = rows.df, rows.classifier
        time = rows.columns.time(df)
        if classifier.future_route == "late":
            df = df.filter(~is_future(time, F.lit(classifier.on_time_from), F.lit(classifier.latest)))
        in_windows = df.withColumn(_START, self._windows.starts(time))
        if rows.routed_late:
            in_windows = in_windows.filter(F.col(_START).isNotNull() & self._takes_rows(classifier))
        partials = (aggregate.partial() for aggregate in self._aggregates.values())
        named = (part.alias(name) for part, name in zip(partials, self._parts, strict=True))
        return in_windows.groupBy(_START, *map(column, self._by)).agg(*named)

    def _merge_parts(self, parts: DataFrame, before: Version, classifier: RowClassifier) -> DataFrame:
        # Cast by type names: such types are nullable at every level, and merged values may be null.
        kinds = {name: parts.schema[name].dataType.simpleString() for name in self._parts}
        as_one = F.struct(*self._parts)
        unknown = F.lit(None).cast(StructType([parts.schema[name] for name in self._parts]))
        keys = [F.col(_START), *map(column, self._by)]
        added = parts.select(*keys, *self._parts, F.lit(True).alias(_TOUCHED), unknown.alias(_BEFORE))
        if before.rows_of is None:
            return added
        kept = self._store.read(parts.sparkSession, before.rows_of).filter(
            self._takes_rows(classifier) | self._ends_above(before.closed)
        )
        state = kept.select(*keys, *self._parts, F.lit(False).alias(_TOUCHED), as_one.alias(_BEFORE))
        merges = zip(self._aggregates.values(), kinds.items(), strict=True)
        merged = (
            state.union(added)
            .groupBy(*keys)
            .agg(
                *(aggregate.merge(F.col(name)).cast(kind).alias(name) for aggregate, (name, kind) in merges),
                F.max(_TOUCHED).alias(_TOUCHED),
                F.first(_BEFORE, ignorenulls=True).alias(_BEFORE),
            )
        )
        changed = F.col(_TOUCHED) & ~self._ends_above(before.closed)
        return merged.withColumn(_BEFORE, F.when(changed, F.col(_BEFORE)))

    def _takes_rows(self, classifier: RowClassifier) -> Column:
        if classifier.pinned_watermark is None:
            return F.lit(True)
        return self._ends_above(classifier.pinned_watermark - self.lateness)

    def _ends_above(self, watermark: int | None) -> Column:
        if watermark is None:
            return F.lit(True)
        return F.col(_START) > F.lit(watermark - self._windows.size)

    # -- results --------------------------------------------------------------------------------------------------

    def _close(self, merged: MergedBatch, cut: Callable[[int], int], coalesced_watermark: int | None) -> None:
        """Store the version of a batch, and emit the windows that it closes or changes.

        Args:
            merged: The batch.
            cut: Returns the end of the last window that a watermark closes.
            coalesced_watermark: The job's coalesced watermark after the commit; None if it is not known.
        """
        batch, before, version = merged.batch, merged.before, merged.found
        if version is None:
            known = [cut(watermark) for watermark in (batch.watermark, coalesced_watermark) if watermark is not None]
            if before.closed is not None:
                known.append(before.closed)
            closed = max(known, default=None)
            planned_ms = self._checkpoint.planned_ms(int(batch))
            version = Version(merged.rows_of, closed, before.closed, merged.layout, planned_ms)
            self._checkpoint.write(f"{_KIND}/{int(batch)}", asdict(version))
        moved = version.closed != version.closed_before
        if version.closed is not None and version.rows_of is not None and (moved or merged.updates):
            self._emit(merged, version)
        self._remove(int(batch) - VERSIONS_KEPT)

    def _emit(self, merged: MergedBatch, version: Version) -> None:
        assert version.rows_of is not None and version.closed is not None
        rows = self._store.read(merged.spark, version.rows_of).filter(~self._ends_above(version.closed))
        changed = F.col(_TOUCHED) if version.rows_of == int(merged.batch) else F.lit(False)
        closes = self._ends_above(version.closed_before)
        start = F.col(_START)
        window = F.struct(
            from_time(self._kind, start).alias("start"),
            from_time(self._kind, start + F.lit(self._windows.size)).alias("end"),
        )
        previous = F.when(~closes & F.col(_BEFORE).isNotNull(), F.struct(*self._finished(F.col(_BEFORE))))
        results = rows.filter(closes | changed).select(
            window.alias("window"), *map(column, self._by), *self._finished(None), previous.alias("previous")
        )
        if not results.isEmpty():
            call_user(self._function, results, merged.batch.closing(version.closed))

    def _finished(self, parts: Column | None) -> list[Column]:
        """Return the results of the partial aggregates: fields of ``parts``, or columns if ``parts`` is None."""
        return [
            aggregate.finish(F.col(part) if parts is None else parts[part]).alias(name)
            for part, (name, aggregate) in zip(self._parts, self._aggregates.items(), strict=True)
        ]

    # -- versions -------------------------------------------------------------------------------------------------

    def _layout(self, schema: StructType) -> str:
        frame = f"windows of {self._windows.size} every {self._windows.slide} from {self._windows.offset}"
        names = [*self._by, *self._aggregates]
        columns = zip(names, (field.dataType.simpleString() for field in schema.fields[1:]), strict=True)
        return f"{frame}: " + ", ".join(f"{name} {kind}" for name, kind in columns)

    def _latest_below(self, batch_id: int) -> Version:
        numbers = [number for number in self._checkpoint.batches(_KIND) if number < batch_id]
        version = self._read(numbers[-1]) if numbers else None
        if version is None and batch_id > 0:
            raise InvalidUsage(
                f"The checkpoint {self._checkpoint.location!r} has no state of windows from before batch {batch_id}: "
                f"the client keeps the last {VERSIONS_KEPT} versions. Start the query on a new checkpoint."
            )
        return version or EMPTY

    def _found(self, batch_id: int) -> Version | None:
        """Return the version of a batch; None if it is missing or belongs to another batch of the same number."""
        version = self._read(batch_id)
        same = version is not None and version.planned_ms == self._checkpoint.planned_ms(batch_id)
        return version if same else None

    def _read(self, batch_id: int) -> Version | None:
        document = self._checkpoint.read(f"{_KIND}/{batch_id}")
        return None if document is None else Version(**document)

    def _remove(self, batch_id: int) -> None:
        """Remove the version of a batch, and its rows unless the next version uses them."""
        version, after = self._read(batch_id), self._read(batch_id + 1)
        if version is None or after is None:
            return
        if version.rows_of is not None and version.rows_of != after.rows_of:
            self._store.delete(version.rows_of)
        self._checkpoint.delete(f"{_KIND}/{batch_id}")
