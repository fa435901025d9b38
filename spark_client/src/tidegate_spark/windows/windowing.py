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
from tidegate_spark.columns import from_time, quoted
from tidegate_spark.errors import InvalidUsage
from tidegate_spark.frame import RESERVED_PREFIX
from tidegate_spark.hook.appends import TableAppends
from tidegate_spark.hook.classify import RowClassifier, not_too_low
from tidegate_spark.hook.handlers import AfterCommit, BatchHandler, BatchRows, UserFunction, call_user
from tidegate_spark.protocol.checkpoint import Checkpoint
from tidegate_spark.spark_session import ADAPTIVE, setting
from tidegate_spark.windows.builder import WindowSettings
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
        incarnation: Incarnation of the job whose watermark has closed the last window.
    """

    rows_of: int | None
    closed: int | None
    closed_before: int | None
    layout: str | None
    planned_ms: int | None
    incarnation: int = 1


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
        appends: The appends of the function to tables.
    """

    def __init__(
        self,
        settings: WindowSettings,
        kind: DataType,
        function: UserFunction,
        checkpoint: Checkpoint,
        appends: TableAppends,
    ) -> None:
        self.frame = settings.frame
        self.lateness = settings.lateness
        self._windows, self._by, self._aggregates = settings.frame, settings.by, settings.aggregates
        self._kind, self._function, self._checkpoint, self._appends = kind, function, checkpoint, appends
        self._store = settings.store or FileState(checkpoint)
        self._keys = [_START, *map(quoted, settings.by)]
        self._parts = [f"{RESERVED_PREFIX}part_{index}" for index in range(len(settings.aggregates))]

    # -- rows -----------------------------------------------------------------------------------------------------

    def handle(self, rows: BatchRows) -> AfterCommit:
        """Merge the rows of a batch; after the commit, emit the windows that close.

        Raises:
            InvalidUsage: If the state is missing, or belongs to other windows.
        """
        return partial(self._close, self._merge(rows), self._windows.cut)

    def written_before(self, batch_id: int) -> int | None:
        """Return the end of the last window that the batches before a batch have closed and emitted."""
        numbers = [number for number in self._checkpoint.batches(_KIND) if number < batch_id]
        version = self._read(numbers[-1]) if numbers else None
        return None if version is None else version.closed

    def end(self, spark: SparkSession, batch: Batch, watermark: int | None) -> int | None:
        """Emit the last windows; return the output watermark."""
        return self._close(self._without_rows(spark, batch), self._windows.cut_at_the_end, watermark)

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
            self._store.write(batch.batch_id, self._merge_parts(parts, merged, rows.classifier))
        return replace(merged, rows_of=batch.batch_id, layout=layout)

    def _without_rows(self, spark: SparkSession, batch: Batch) -> MergedBatch:
        before, found = self._latest_below(batch.batch_id), self._found(batch.batch_id)
        return MergedBatch(spark, batch, before, found, before.rows_of, before.layout, updates=False)

    def _parts_of(self, rows: BatchRows) -> DataFrame:
        """Return the partial aggregates of a batch's rows, by window start and keys."""
        df, classifier = rows.df, rows.classifier
        time = rows.columns.time(df)
        # Bounds as literals are part of the generated code, which Spark would compile again for every batch. So filter
        # only batches that have such rows.
        if "future" in rows.routed_late:
            df = df.filter(f"NOT {classifier.is_future(time)}")
        in_windows = df.selectExpr("*", f"{self._windows.starts(f'({not_too_low(time)})')} AS {_START}")
        if rows.routed_late:
            in_windows = in_windows.filter(f"{_START} IS NOT NULL AND {self._takes_rows(classifier)}")
        partials = (aggregate.partial() for aggregate in self._aggregates.values())
        named = (part.alias(name) for part, name in zip(partials, self._parts, strict=True))
        return in_windows.groupBy(*self._keys).agg(*named)

    def _merge_parts(self, parts: DataFrame, merged: MergedBatch, classifier: RowClassifier) -> DataFrame:
        """Return the rows of the new version.

        A row whose window was closed before has the partial aggregates of the previous version in the column
        ``tidegate_before``, if the batch may have changed such windows.
        """
        before = merged.before
        # Cast by type names: such types are nullable at every level, and merged values may be null.
        kinds = {name: parts.schema[name].dataType.simpleString() for name in self._parts}
        columns = [*self._keys, *self._parts]
        unknown = f"CAST(NULL AS struct<{','.join(f'{name}:{kind}' for name, kind in kinds.items())}>)"
        added = parts.selectExpr(*columns, f"true AS {_TOUCHED}", f"{unknown} AS {_BEFORE}")
        if before.rows_of is None:
            return added
        kept = self._store.read(parts.sparkSession, before.rows_of).filter(
            f"{self._takes_rows(classifier)} OR {self._ends_above(before.closed)}"
        )
        earlier = f"CASE WHEN NOT {self._ends_above(before.closed)} THEN struct({', '.join(self._parts)}) END"
        state = kept.selectExpr(*columns, f"false AS {_TOUCHED}", f"{earlier} AS {_BEFORE}")
        merges = zip(self._aggregates.values(), kinds.items(), strict=True)
        return (
            state.union(added)
            .groupBy(*self._keys)
            .agg(
                *(aggregate.merge(F.col(name)).cast(kind).alias(name) for aggregate, (name, kind) in merges),
                F.expr(f"bool_or({_TOUCHED}) AS {_TOUCHED}"),
                # A structure as an aggregate is expensive: Spark then sorts the rows in place of hashing them.
                F.expr(f"{f'first({_BEFORE}, true)' if merged.updates else unknown} AS {_BEFORE}"),
            )
        )

    def _takes_rows(self, classifier: RowClassifier) -> str:
        if classifier.pinned_watermark is None:
            return "true"
        return self._ends_above(classifier.pinned_watermark - self.lateness)

    def _ends_above(self, watermark: int | None) -> str:
        return "true" if watermark is None else f"({_START} >= {self._windows.first_open(watermark)}L)"

    # -- results --------------------------------------------------------------------------------------------------

    def _close(self, merged: MergedBatch, cut: Callable[[int], int], coalesced_watermark: int | None) -> int | None:
        """Store the version of a batch, and emit the windows that it closes or changes; return the output watermark.

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
            planned_ms = self._checkpoint.planned_ms(batch.batch_id)
            incarnation = before.incarnation if closed == before.closed else batch.incarnation
            version = Version(merged.rows_of, closed, before.closed, merged.layout, planned_ms, incarnation)
            self._checkpoint.write(f"{_KIND}/{batch.batch_id}", asdict(version))
        moved = version.closed != version.closed_before
        if version.closed is not None and version.rows_of is not None and (moved or merged.updates):
            self._emit(merged, version)
        self._remove(batch.batch_id - VERSIONS_KEPT)
        self.incarnation = version.incarnation
        return version.closed

    def _emit(self, merged: MergedBatch, version: Version) -> None:
        assert version.rows_of is not None and version.closed is not None
        touched = _TOUCHED if version.rows_of == merged.batch.batch_id else "false"
        closes = self._ends_above(version.closed_before)
        emitted = f"NOT {self._ends_above(version.closed)} AND ({closes} OR {touched})"
        rows = self._store.read(merged.spark, version.rows_of).filter(emitted)
        start, end = (from_time(self._kind, time) for time in (_START, self._windows.end(_START)))
        changed = F.expr(f"NOT {closes} AND {_BEFORE} IS NOT NULL")
        results = rows.select(
            F.expr(f"named_struct('start', {start}, 'end', {end}) AS window"),
            *map(quoted, self._by),
            *self._finished(""),
            F.when(changed, F.struct(*self._finished(f"{_BEFORE}."))).alias("previous"),
        )
        if not results.isEmpty():
            # A batch after the end of the input is not begun, so only its version tells an earlier attempt.
            replayed = merged.batch.replayed or merged.found is not None
            batch = replace(
                merged.batch, job_watermark=version.closed, replayed=replayed, incarnation=version.incarnation
            )
            call_user(self._function, results, self._appends.during(batch, "windows"))

    def _finished(self, prefix: str) -> list[Column]:
        """Return the results of the partial aggregates whose columns have a prefix."""
        return [
            aggregate.finish(F.col(f"{prefix}{part}")).alias(name)
            for part, (name, aggregate) in zip(self._parts, self._aggregates.items(), strict=True)
        ]

    # -- versions -------------------------------------------------------------------------------------------------

    def _layout(self, schema: StructType) -> str:
        frame = f"windows of {self._windows.size} every {self._windows.slide} from {self._windows.offset}"
        if self._windows.time_zone is not None:
            frame += f" in {self._windows.time_zone}"
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
