"""The fold of a native batch, computed by the tasks that read the batch.

The folds are stored in ``<checkpointLocation>/tidegate/native/<query>/folds`` until Spark has finished the batch and
the driver has moved them to the backlog (:mod:`tidegate_spark.native.finished`). A task that runs twice writes the same
file twice. A replay in another run of the query writes other files.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import repeat
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from tidegate_spark.errors import InvalidUsage
from tidegate_spark.frame import Frame
from tidegate_spark.protocol.checkpoint import Checkpoint, Planned
from tidegate_spark.protocol.fold import HIGHEST, HOUR, LOWEST, Fold, Hours, hours_of, merge_hours
from tidegate_spark.substreams import WHOLE, name_of

FOLDS = "folds"
"""Document kind of the folds. A document is named ``<batch>.<run>.<partition>``."""

TASK_SETTINGS = "task_settings"
"""Name of the document with the driver's settings for the tasks."""

ROWS_AT_A_TIME = 200_000
MICROS = 1000
"""Microseconds per millisecond. Spark compares event times with its watermark in microseconds."""

_MEASURES = ("max_event_time", "rows", "timed", "late", "future")


def documents_of(checkpoint: str, query: str) -> Checkpoint:
    """Return the :class:`Checkpoint` with the documents of one native input.

    Inputs with different names may share a checkpoint.
    """
    return Checkpoint(checkpoint, f"tidegate/native/{query}")


def another_checkpoint(location: str) -> InvalidUsage:
    """Return the error for a query whose checkpoint is not at ``location``."""
    return InvalidUsage(
        f"with_watermark() got checkpointLocation={location!r}, but the query uses another checkpoint: pass the same "
        "checkpointLocation to with_watermark() and start()."
    )


def check_policy(policy: str | None) -> None:
    """Raise InvalidUsage if Spark would use the highest of several watermarks."""
    if policy == "max":
        raise InvalidUsage(
            "spark.sql.streaming.multipleWatermarkPolicy is max: any other watermark of the query would overrule the "
            "coordinator's, and rows would be lost. Set the policy to min. A query that was started with max needs a "
            "new checkpoint."
        )


@dataclass(frozen=True, slots=True)
class Folding:
    """A function for ``mapInArrow`` over the columns ``planned_ms``, ``partition``, ``key_0`` …, ``time``.

    Attributes:
        input: Id of this input, unique to one run of the program.
        checkpoint: Location of the query's checkpoint.
        query: Name of the query.
        frame: The windows by which Spark classifies rows; None if Spark classifies rows by event time.
        keys: Number of columns that identify the substream.
        late_by_the_batch_before: Whether Spark classifies the rows of a batch by the watermark of the previous
            batch. Spark does so unless ``spark.sql.streaming.statefulOperator.allowMultiple`` is off.
    """

    input: str
    checkpoint: str
    query: str
    frame: Frame | None
    keys: int
    late_by_the_batch_before: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Fold the rows of a partition and store the fold; return no rows."""
        folded: PartitionFold | None = None
        for batch in batches:
            if batch.num_rows:
                folded = folded or self._begin(batch)
                folded.add(batch)
        if folded is not None:
            folded.write()
        return iter(())

    def _begin(self, rows: pa.RecordBatch) -> "PartitionFold":
        planned_ms, partition = (rows.column(name)[0].as_py() for name in ("planned_ms", "partition"))
        batch_id, planned, before = _planned(self.checkpoint, planned_ms)
        judging = before if self.late_by_the_batch_before else planned
        context = TaskContext.get()
        # The id of Spark's job group identifies the run of the query.
        group = None if context is None else context.getLocalProperty("spark.jobGroup.id")
        run = hashlib.sha256(f"{self.input} {group}".encode()).hexdigest()[:16]
        settings = documents_of(self.checkpoint, self.query).read(TASK_SETTINGS)
        if settings is None:
            raise InvalidUsage(
                f"This task finds no settings of the driver in the checkpoint {self.checkpoint!r}: the checkpoint must "
                "be on a file system that the driver and all executors share."
            )
        future_skew_ms = settings["max_future_skew_ms"]
        latest = HIGHEST if future_skew_ms is None else min(planned_ms + future_skew_ms, HIGHEST)
        watermark_ms = 0 if judging is None else judging.watermark_ms
        name = f"{FOLDS}/{batch_id}.{run}.{partition}"
        return PartitionFold(self, name, planned_ms, watermark_ms, latest, settings.get("slot"))

    def late_below(self, watermark_ms: int) -> int:
        """Return the lowest event time, in microseconds, that is not late by Spark's watermark.

        Spark drops a row at or below its watermark, and a window that ends at or below its watermark.
        """
        if self.frame is None:
            return watermark_ms * MICROS + 1
        return self.frame.cut(watermark_ms) * MICROS


@lru_cache(maxsize=16)
def _planned(location: str, planned_ms: int) -> tuple[int, Planned, Planned | None]:
    """Return the batch planned at ``planned_ms`` (epoch milliseconds), its plan, and the plan of the previous batch.

    Only the time of the plan identifies the batch: under Spark Connect, a task of a ``foreachBatch`` function has
    neither the batch id nor the query id.

    Raises:
        InvalidUsage: If the query has another checkpoint.
    """
    checkpoint = Checkpoint(location)
    for batch_id in sorted(checkpoint.planned_batches(), reverse=True):
        planned = checkpoint.planned(batch_id)
        if planned is not None and planned.at_ms == planned_ms:
            check_policy(planned.watermark_policy)
            return batch_id, planned, checkpoint.planned(batch_id - 1)
        if planned is not None and planned.at_ms < planned_ms:
            break
    raise another_checkpoint(location)


class PartitionFold:
    """The fold of one partition of the source in one batch.

    Args:
        folding: The function that creates the fold.
        name: Name of the document.
        planned_ms: Time at which Spark planned the batch (epoch milliseconds).
        watermark_ms: Spark's watermark by which the rows are classified.
        latest: Highest event time that is not too far ahead of the clock, in milliseconds.
        slot: Length of the slots by which rows are counted, in milliseconds; None if the job declares no frames.
    """

    def __init__(
        self,
        folding: Folding,
        name: str,
        planned_ms: int,
        watermark_ms: int,
        latest: int,
        slot: int | None = None,
    ) -> None:
        self._folding, self._name = folding, name
        self._planned_ms, self._watermark_ms = planned_ms, watermark_ms
        self._keys = [f"key_{index}" for index in range(folding.keys)]
        self._late_below = folding.late_below(watermark_ms)
        self._latest = latest * MICROS + MICROS - 1
        self._slot = slot
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0
        self._folded: list[pa.Table] = []

    def write(self) -> None:
        """Write the fold for the driver."""
        document = {"planned_ms": self._planned_ms, "watermark_ms": self._watermark_ms, "fold": asdict(self.fold())}
        documents_of(self._folding.checkpoint, self._folding.query).write(self._name, document)

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows to the fold."""
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
        credible = pc.and_(pc.less_equal(micros, self._latest), pc.greater_equal(micros, LOWEST * MICROS))
        columns = {
            **{key: table[key] for key in self._keys},
            "max_event_time": pc.if_else(credible, micros, pa.scalar(None, pa.int64())),
            "rows": pa.repeat(pa.scalar(1, pa.int64()), table.num_rows),
            "timed": pc.cast(pc.is_valid(micros), pa.int64()),
            "late": pc.cast(late, pa.int64()),
            "future": pc.cast(future, pa.int64()),
        }
        columns["hour"] = _quotient(columns["max_event_time"], (self._slot or HOUR) * MICROS)
        self._folded.append(self._grouped(pa.table(columns), [*self._keys, "hour"]))

    def _grouped(self, table: pa.Table, keys: list[str]) -> pa.Table:
        how = [(name, "max" if name == "max_event_time" else "sum") for name in _MEASURES]
        # A task has one core, and several threads would make the order of groups random.
        grouped = table.group_by(keys, use_threads=False).aggregate(how)
        return pa.table({key: grouped[key] for key in keys} | {name: grouped[f"{name}_{kind}"] for name, kind in how})

    def _hours(self, folded: pa.Table) -> dict[tuple[str | None, ...], Hours]:
        """Return each substream's row counts by hour. The keys of the result are those of the substreams."""
        found: dict[tuple[str | None, ...], Hours] = {}
        by_hour = folded.filter(pc.is_valid(folded["hour"])).to_pydict()
        keys = zip(*(by_hour[key] for key in self._keys), strict=True) if self._keys else repeat(())
        for key, hour, rows, late in zip(keys, by_hour["hour"], by_hour["rows"], by_hour["late"], strict=False):
            found.setdefault(key, []).append([hour, rows, 0, late or 0])
        return found

    def fold(self) -> Fold:
        """Return the fold of all rows that were added."""
        if self._waiting:
            self._fold()
        folded = pa.concat_tables(self._folded)
        found: dict[str, list[Any]] = self._grouped(folded, self._keys).to_pydict()
        hours, slots = self._hours(folded), list[list[int]]()
        if self._slot is not None:
            slots = merge_hours(hours.values())
            hours = {key: hours_of(of_key, self._slot) for key, of_key in hours.items()}
        keys = [found.pop(key) for key in self._keys]
        count = len(found["rows"])
        by_key = zip(*keys, strict=True) if keys else [()] * count
        return Fold(
            substream=[name_of(values) for values in zip(*keys, strict=True)] if keys else [WHOLE] * count,
            max_event_time=[None if micros is None else micros // MICROS for micros in found["max_event_time"]],
            rows=found["rows"],
            updated=[0] * count,
            late=[late or 0 for late in found["late"]],
            null_event_time=[rows - timed for rows, timed in zip(found["rows"], found["timed"], strict=True)],
            future=[future or 0 for future in found["future"]],
            hours=[merge_hours([hours.get(key, [])]) for key in by_key],
            slot=self._slot,
            slots=slots,
        )


def _quotient(micros: pa.ChunkedArray, length: int) -> pa.ChunkedArray:
    """Return times divided by a length, rounded down. Arrow's integer division rounds towards zero."""
    quotient = pc.divide(micros, length)
    return pc.subtract(quotient, pc.cast(pc.less(micros, pc.multiply(quotient, length)), pa.int64()))
