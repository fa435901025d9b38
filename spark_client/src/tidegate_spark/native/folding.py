"""What the executors see of a batch: its event times, folded to a row per substream and left beside the checkpoint.

They lie there, in ``<checkpointLocation>/tidegate/native/<query>/folds``, until Spark has finished the batch and the
coordinator was told (:mod:`tidegate_spark.native.finished`). A task that runs twice writes the same file twice, and a
batch that is replayed by another run of the query writes files of its own.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from tidegate_spark.checkpoint import Checkpoint, Planned
from tidegate_spark.errors import InvalidUsage
from tidegate_spark.fold import Fold
from tidegate_spark.judgement import HIGHEST, LOWEST
from tidegate_spark.substreams import WHOLE, name_of
from tidegate_spark.windows.frame import Frame

FOLDS = "folds"
"""The kind of document that a fold is. Their names: ``<batch>.<run>.<partition>``."""

ROWS_AT_A_TIME = 200_000
MICROS = 1000
"""In a millisecond. Spark's timestamps are in microseconds, and so is what it compares with its watermark."""

_NO_LIMIT = 2**63 - 1
_MEASURES = ("top", "rows", "timed", "late", "future")


def documents_of(checkpoint: str, query: str) -> Checkpoint:
    """The documents of one native input: there may be several on a checkpoint, which do not share them."""
    return Checkpoint(checkpoint, f"tidegate/native/{query}")


def check_policy(policy: str | None) -> None:
    """:raises InvalidUsage: where Spark would take the highest of several watermarks."""
    if policy == "max":
        raise InvalidUsage(
            "spark.sql.streaming.multipleWatermarkPolicy is max: any other watermark of the query would overrule the "
            "coordinator's, and rows be lost. Set it to min; a query that has begun with max needs a new checkpoint."
        )


@dataclass(frozen=True, slots=True)
class Folding:
    """A function for ``mapInArrow`` over the columns ``partition``, ``key_0`` …, ``time``. It gives out no rows.

    ``checkpoint``, ``query``: where the folds go. ``frame``: the windows that rows are judged by; None: they are judged
    one by one. ``skew_ms``: event times further ahead of the plan of their batch cannot be true; None: any can.
    ``keys``: how many columns name the substream. ``late_by_the_batch_before``: Spark judges the rows of a batch by the
    watermark of the one before, and closes windows by its own; so it does unless
    ``spark.sql.streaming.statefulOperator.allowMultiple`` is off.
    """

    checkpoint: str
    query: str
    frame: Frame | None
    skew_ms: int | None
    keys: int
    late_by_the_batch_before: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None, "in a task"
        batch_id, query_id, run = map(
            context.getLocalProperty, ("streaming.sql.batchId", "sql.streaming.queryId", "spark.jobGroup.id")
        )
        assert batch_id is not None and query_id is not None and run is not None, "in a batch of a stream"
        planned = _planned(self.checkpoint, int(batch_id), query_id, run)
        watermark_ms = planned.watermark_ms
        if self.late_by_the_batch_before:
            before = Checkpoint(self.checkpoint).planned(int(batch_id) - 1)
            watermark_ms = 0 if before is None else before.watermark_ms
        folded = Folded(self, planned.at_ms, watermark_ms)
        for batch in batches:
            folded.add(batch)
        if (partition := folded.partition) is not None:
            fold = folded.fold()
            fold.check_size()
            document = {"planned_ms": planned.at_ms, "watermark_ms": watermark_ms, "fold": fold.document()}
            documents_of(self.checkpoint, self.query).write(f"{FOLDS}/{batch_id}.{run}.{partition}", document)
        return iter(())

    @property
    def rule(self) -> str:
        """The name of the rule that rows are judged by, as the coordinator keeps it with the counts."""
        return "row: event_time <= Spark's watermark" if self.frame is None else "window: end <= Spark's watermark"

    def late_below(self, watermark_ms: int) -> int:
        """The lowest event time, in microseconds, of rows that are not late by Spark's watermark.

        Spark drops a row at its watermark or below, and a window that ends there.
        """
        if self.frame is None:
            return watermark_ms * MICROS + 1
        return self.frame.cut(watermark_ms) * MICROS


@lru_cache(maxsize=16)
def _planned(location: str, batch_id: int, query_id: str, run: str) -> Planned:
    """What Spark has settled of a batch of a run.

    :raises InvalidUsage: for another checkpoint than that of the query.
    """
    checkpoint = Checkpoint(location)
    planned = checkpoint.planned(batch_id) if checkpoint.started() and checkpoint.query_id == query_id else None
    if planned is None:
        raise InvalidUsage(
            f"native(checkpointLocation={location!r}) is not where this query has its checkpoint: give the same to "
            "both, native() and start()."
        )
    check_policy(planned.watermark_policy)
    return planned


class Folded:
    """The event times of one partition of the source."""

    def __init__(self, folding: Folding, planned_ms: int, watermark_ms: int) -> None:
        self.partition: int | None = None
        self._rule, self._keys = folding.rule, [f"key_{index}" for index in range(folding.keys)]
        self._late_below = folding.late_below(watermark_ms)
        latest = HIGHEST if folding.skew_ms is None else min(planned_ms + folding.skew_ms, HIGHEST)
        self._latest = min(latest * MICROS + MICROS - 1, _NO_LIMIT)
        self._lowest = max(LOWEST * MICROS, -_NO_LIMIT)
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0
        self._folded: list[pa.Table] = []

    def add(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows:
            if self.partition is None:
                self.partition = batch.column("partition")[0].as_py()
            self._waiting.append(batch)
            self._waiting_rows += batch.num_rows
        if self._waiting_rows >= ROWS_AT_A_TIME:
            self._fold()

    def _fold(self) -> None:
        table = pa.Table.from_batches(self._waiting)
        self._waiting, self._waiting_rows = [], 0
        micros = table["time"].cast(pa.int64())
        late = pc.less(micros, self._late_below)
        future = pc.and_not(pc.greater(micros, self._latest), late)
        credible = pc.and_(pc.less_equal(micros, self._latest), pc.greater_equal(micros, self._lowest))
        columns = {
            **{key: table[key] for key in self._keys},
            "top": pc.if_else(credible, micros, pa.scalar(None, pa.int64())),
            "rows": pa.repeat(pa.scalar(1, pa.int64()), table.num_rows),
            "timed": pc.cast(pc.is_valid(micros), pa.int64()),
            "late": pc.cast(late, pa.int64()),
            "future": pc.cast(future, pa.int64()),
        }
        self._folded.append(self._grouped(pa.table(columns)))

    def _grouped(self, table: pa.Table) -> pa.Table:
        how = [(name, "max" if name == "top" else "sum") for name in _MEASURES]
        grouped = table.group_by(self._keys).aggregate(how)
        return pa.table(
            {key: grouped[key] for key in self._keys} | {name: grouped[f"{name}_{kind}"] for name, kind in how}
        )

    def fold(self) -> Fold:
        """What became of all the rows that were added."""
        if self._waiting:
            self._fold()
        found: dict[str, list[Any]] = self._grouped(pa.concat_tables(self._folded)).to_pydict()
        keys = [found.pop(key) for key in self._keys]
        count = len(found["rows"])
        return Fold(
            rule=self._rule,
            substream=[name_of(values) for values in zip(*keys, strict=True)] if keys else [WHOLE] * count,
            top=[None if micros is None else micros // MICROS for micros in found["top"]],
            rows=found["rows"],
            updated=[0] * count,
            late=[late or 0 for late in found["late"]],
            null_event_time=[rows - timed for rows, timed in zip(found["rows"], found["timed"], strict=True)],
            future=[future or 0 for future in found["future"]],
        )
