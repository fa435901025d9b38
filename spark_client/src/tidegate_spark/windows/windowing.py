"""Windowed aggregates, batch by batch: what a batch brings is merged with the state, and windows are given out as they
close.

Before the commit a batch's rows are merged with the version of the state before it. After the commit the job's
coalesced watermark says which windows are closed now. That is written down (the batch's *version*) before it is used: a
batch that is replayed gives out the same.

Invariants:

1. The version of a batch derives from the latest one below it, and from the batch's rows; never from one at or above.
2. A window is given out when it closes, with all rows that it has then; and again with each batch that changes it.
3. The state has the windows that a row can still come to, and those of its batch that were closed by it.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructType

from tidegate_spark.batch import Batch
from tidegate_spark.checkpoint import Checkpoint
from tidegate_spark.columns import Columns, column, from_time
from tidegate_spark.errors import InvalidUsage
from tidegate_spark.fold import Fold
from tidegate_spark.judgement import Judgement, future
from tidegate_spark.session import ADAPTIVE, setting
from tidegate_spark.windows.aggregates import Aggregate
from tidegate_spark.windows.builder import OURS
from tidegate_spark.windows.frame import Frame
from tidegate_spark.windows.state import StateStore

VERSIONS_KEPT = 10
"""Spark replays the last batch; more are kept for those who go back to a copy of the checkpoint."""

_KIND = "windows"
_START, _TOUCHED, _BEFORE = f"{OURS}start", f"{OURS}touched", f"{OURS}before"


@dataclass(frozen=True, slots=True)
class Version:
    """What a batch left behind.

    ``rows_of``: the batch under whose number the state's rows lie, None where there are none. ``closed``: windows that
    end at or below it were given out; None: none was yet. ``closed_before``: the same of the batch before. ``layout``:
    of the rows. ``planned_ms``: when Spark settled what is in the batch, to tell it from another of its number.
    """

    rows_of: int | None
    closed: int | None
    closed_before: int | None
    layout: str | None
    planned_ms: int | None


NOTHING = Version(None, None, None, None, None)


@dataclass(frozen=True, slots=True)
class Taken:
    """A batch whose rows are in the state. ``found``: its version, where an earlier run has come to write it.
    ``updates``: a window that was closed before may have changed.
    """

    spark: SparkSession
    batch: Batch
    before: Version
    found: Version | None
    rows_of: int | None
    layout: str | None
    updates: bool


class Windowing:
    """The windows of one query."""

    def __init__(
        self,
        frame: Frame,
        by: tuple[str, ...],
        aggregates: Mapping[str, Aggregate],
        lateness: int,
        columns: Columns,
        kind: DataType,
        function: Callable[[DataFrame, Batch], Any],
        checkpoint: Checkpoint,
        store: StateStore,
    ) -> None:
        self.frame, self.lateness = frame, lateness
        self._by, self._aggregates, self._columns, self._kind = by, aggregates, columns, kind
        self._function, self._checkpoint, self._store = function, checkpoint, store
        self._parts = [f"{OURS}part_{index}" for index in range(len(aggregates))]

    # -- rows -----------------------------------------------------------------------------------------------------

    def take_in(self, df: DataFrame, judgement: Judgement, fold: Fold, batch: Batch) -> Taken:
        """Merges the batch's rows into the state, but for those that come too late for a window.

        :raises InvalidUsage: where the state beside the checkpoint is none that this can go on with.
        """
        taken = self.pass_by(df.sparkSession, batch)
        before, found = taken.before, taken.found
        # A late row may be taken by some of its windows, where they overlap.
        overlapping = fold.count("late") if self.frame.slide < self.frame.size else 0
        # An assumed pin may be below what was closed.
        behind = before.closed is not None and (batch.watermark is None or batch.watermark < before.closed)
        taken = replace(taken, updates=behind or fold.count("updated") + overlapping > 0)
        if found is not None:
            return replace(taken, rows_of=found.rows_of, layout=found.layout)
        set_aside = sum(fold.count(name) for name in judgement.classes_aside)
        if sum(fold.rows) - set_aside + overlapping == 0:
            return taken
        parts = self._in_parts(df, judgement, plain=set_aside == 0)
        layout = self._layout(parts.schema)
        if before.layout not in (None, layout):
            raise InvalidUsage(
                f"The windows of this checkpoint were kept as {before.layout}; now they would be {layout}. Start the "
                "query with other windows or aggregates on a new checkpoint."
            )
        with setting(df.sparkSession, ADAPTIVE, "true"):
            self._store.write(int(batch), self._merged(parts, before, judgement))
        return replace(taken, rows_of=int(batch), layout=layout)

    def pass_by(self, spark: SparkSession, batch: Batch) -> Taken:
        """A batch that has no rows."""
        before, found = self._latest_below(batch), self._found(batch)
        return Taken(spark, batch, before, found, before.rows_of, before.layout, updates=False)

    def _in_parts(self, df: DataFrame, judgement: Judgement, plain: bool) -> DataFrame:
        """What the batch's rows add to each window: start, keys, parts."""
        time = self._columns.time(df)
        if judgement.future_goes == "late":
            df = df.filter(~future(time, F.lit(judgement.on_time_from), F.lit(judgement.latest)))
        rows = df.withColumn(_START, self.frame.starts(time))
        if not plain:
            rows = rows.filter(F.col(_START).isNotNull() & self._takes_rows(judgement))
        partials = (aggregate.partial() for aggregate in self._aggregates.values())
        named = (part.alias(name) for part, name in zip(partials, self._parts, strict=True))
        return rows.groupBy(_START, *map(column, self._by)).agg(*named)

    def _merged(self, parts: DataFrame, before: Version, judgement: Judgement) -> DataFrame:
        # As text they are nullable throughout, which what is merged may be.
        kinds = {name: parts.schema[name].dataType.simpleString() for name in self._parts}
        as_one = F.struct(*self._parts)
        unknown = F.lit(None).cast(StructType([parts.schema[name] for name in self._parts]))
        keys = [F.col(_START), *map(column, self._by)]
        added = parts.select(*keys, *self._parts, F.lit(True).alias(_TOUCHED), unknown.alias(_BEFORE))
        if before.rows_of is None:
            return added
        kept = self._store.read(parts.sparkSession, before.rows_of).filter(
            self._takes_rows(judgement) | self._ends_above(before.closed)
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

    def _takes_rows(self, judgement: Judgement) -> Column:
        """Whether a window still takes rows."""
        if judgement.pinned_watermark is None:
            return F.lit(True)
        return self._ends_above(judgement.pinned_watermark - self.lateness)

    def _ends_above(self, watermark: int | None) -> Column:
        """Whether a window ends above a watermark, so that this does not close it."""
        if watermark is None:
            return F.lit(True)
        return F.col(_START) > F.lit(watermark - self.frame.size)

    # -- results --------------------------------------------------------------------------------------------------

    def close(self, taken: Taken, coalesced_watermark: int | None, at_the_end: bool = False) -> None:
        """Gives out what is closed now. ``coalesced_watermark``: the job's watermark after the commit; None: not heard
        of.
        ``at_the_end``: of the job's input.
        """
        batch, before, version = taken.batch, taken.before, taken.found
        if version is None:
            cut = self.frame.cut_at_the_end if at_the_end else self.frame.cut
            known = [cut(watermark) for watermark in (batch.watermark, coalesced_watermark) if watermark is not None]
            if before.closed is not None:
                known.append(before.closed)
            closed = max(known, default=None)
            planned_ms = self._checkpoint.planned_ms(int(batch))
            version = Version(taken.rows_of, closed, before.closed, taken.layout, planned_ms)
            self._checkpoint.write(f"{_KIND}/{int(batch)}", asdict(version))
        moved = version.closed != version.closed_before
        if version.closed is not None and version.rows_of is not None and (moved or taken.updates):
            self._give_out(taken, version)
        self._forget(int(batch) - VERSIONS_KEPT)

    def _give_out(self, taken: Taken, version: Version) -> None:
        assert version.rows_of is not None and version.closed is not None
        rows = self._store.read(taken.spark, version.rows_of).filter(~self._ends_above(version.closed))
        changed = F.col(_TOUCHED) if version.rows_of == int(taken.batch) else F.lit(False)
        closes = self._ends_above(version.closed_before)
        start = F.col(_START)
        window = F.struct(
            from_time(self._kind, start).alias("start"),
            from_time(self._kind, start + F.lit(self.frame.size)).alias("end"),
        )
        previous = F.when(~closes & F.col(_BEFORE).isNotNull(), F.struct(*self._finished(F.col(_BEFORE))))
        results = rows.filter(closes | changed).select(
            window.alias("window"), *map(column, self._by), *self._finished(None), previous.alias("previous")
        )
        if not results.isEmpty():
            self._function(results, taken.batch.closing(version.closed))

    def _finished(self, parts: Column | None) -> list[Column]:
        """The results, from the parts in a column, or in columns of their own."""
        return [
            aggregate.finish(F.col(part) if parts is None else parts[part]).alias(name)
            for part, (name, aggregate) in zip(self._parts, self._aggregates.items(), strict=True)
        ]

    # -- versions -------------------------------------------------------------------------------------------------

    def _layout(self, schema: StructType) -> str:
        frame = f"windows of {self.frame.size} every {self.frame.slide} from {self.frame.offset}"
        names = [*self._by, *self._aggregates]
        columns = zip(names, (field.dataType.simpleString() for field in schema.fields[1:]), strict=True)
        return f"{frame}: " + ", ".join(f"{name} {kind}" for name, kind in columns)

    def _latest_below(self, batch_id: int) -> Version:
        numbers = [number for number in self._checkpoint.batches(_KIND) if number < batch_id]
        version = self._read(numbers[-1]) if numbers else None
        if version is None and batch_id > 0:
            raise InvalidUsage(
                f"Beside the checkpoint {self._checkpoint.location!r} is no state of windows from before batch "
                f"{batch_id}: the last {VERSIONS_KEPT} are kept. Start the query on a new checkpoint."
            )
        return version or NOTHING

    def _found(self, batch_id: int) -> Version | None:
        """The version of a batch, if it is of this very one."""
        version = self._read(batch_id)
        same = version is not None and version.planned_ms == self._checkpoint.planned_ms(batch_id)
        return version if same else None

    def _read(self, batch_id: int) -> Version | None:
        document = self._checkpoint.read(f"{_KIND}/{batch_id}")
        return None if document is None else Version(**document)

    def _forget(self, batch_id: int) -> None:
        """Forgets the version of a batch, and its rows where the next one has others."""
        version, after = self._read(batch_id), self._read(batch_id + 1)
        if version is None or after is None:
            return
        if version.rows_of is not None and version.rows_of != after.rows_of:
            self._store.delete(version.rows_of)
        self._checkpoint.delete(f"{_KIND}/{batch_id}")
