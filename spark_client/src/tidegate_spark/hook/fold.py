"""The fold of a batch: its event times are reduced to one row per substream.

The reduction is a partial aggregate in the JVM. In the mode ``executor``, a few Arrow tasks post the remaining rows and
return them, so the driver gets the counts from the same pass. In the modes ``driver`` and ``observe`` the driver
reports. (Measured and slower: folds over whole rows, in Arrow and in Python; a fold by source partition and substream;
``DataFrame.observe`` on the user's action, which a count has to check.)

There are two folds. The *plain* fold computes the lowest and the highest event time of each substream and counts its
rows. That suffices if all event times between them are on time. The *full* fold tests each row, which takes 1.5 times
as long. A batch starts with the plain fold unless the batch before had late, updated or future rows.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidegate_spark.columns import Columns, whole_times
from tidegate_spark.hook.classify import RowClassifier, credible, hour_of, is_future, is_late, is_updated
from tidegate_spark.hook.delays import DelayMeasurement
from tidegate_spark.protocol.fold import CLASSES, HOURS_PER_COMMIT, Fold
from tidegate_spark.protocol.hours import hours_between, merge_hours, spread
from tidegate_spark.protocol.reporter import Reporter, reports_of
from tidegate_spark.session import SHUFFLE_PARTITIONS, setting
from tidegate_spark.substreams import WHOLE, name_of
from tidegate_spark.versions import to_arrow

Mode = Literal["executor", "driver", "observe"]
Folded = dict[str, list[Any]]
"""The columns of a fold, by name."""

_MEASURES = ("max_event_time", "rows", *CLASSES)
_POSTED = pa.schema(
    [("substream", pa.string())]
    + [(name, pa.int64()) for name in (*_MEASURES, "min_event_time")]
    + [(name, pa.list_(pa.list_(pa.int64()))) for name in ("hours", "delays")]
    + [("waited_s", pa.float64()), ("delivered", pa.bool_()), ("judged", pa.bool_())]
)
_POSTED_SQL = (
    "substream string, max_event_time long, rows long, updated long, late long, null_event_time long, future long, "
    "min_event_time long, hours array<array<long>>, delays array<array<long>>, waited_s double, delivered boolean, "
    "judged boolean"
)


class FoldMethod(Protocol):
    """A way to fold a batch."""

    columns: Columns
    classifier: RowClassifier

    def aggregate(self, df: DataFrame) -> DataFrame:
        """Return the aggregate by substream; the first columns are its keys."""

    def judge(self, folded: Folded) -> list[bool]:
        """Add the counts by class; return for each row whether they are known."""

    def add_hours(self, folded: Folded) -> None:
        """Add the hours and the delays in the format of :class:`Fold`."""


@dataclass(slots=True)
class PlainFold:
    """The fold that tests no row and measures no delays."""

    columns: Columns
    classifier: RowClassifier

    def aggregate(self, df: DataFrame) -> DataFrame:
        """Return the aggregate by substream. All batches have the same plan, so Spark compiles it once."""
        keys = [key.alias(_key(index)) for index, key in enumerate(self.columns.keys())]
        time = self.columns.raw_time()
        return df.groupBy(*keys).agg(
            F.max(time).alias("max_event_time"),
            F.min(time).alias("min_event_time"),
            F.count(F.lit(1)).alias("rows"),
            F.count(time).alias("timed"),
        )

    def judge(self, folded: Folded) -> list[bool]:
        """Add the counts by class; they are known for substreams whose rows are all on time."""
        timed = folded.pop("timed")
        folded["updated"] = folded["late"] = folded["future"] = [0] * len(timed)
        folded["null_event_time"] = [rows - known for rows, known in zip(folded["rows"], timed, strict=True)]
        return [*map(self.classifier.all_on_time, folded["min_event_time"], folded["max_event_time"])]

    def add_hours(self, folded: Folded) -> None:
        """Spread the rows over hours: by substream or, if there would be too many, together."""
        lowest, highest = folded.pop("min_event_time"), folded["max_event_time"]
        timed = [rows - unknown for rows, unknown in zip(folded["rows"], folded["null_event_time"], strict=True)]
        folded["delays"] = []
        if sum(map(hours_between, lowest, highest)) <= HOURS_PER_COMMIT:
            folded["hours"] = [*map(spread, lowest, highest, timed)]
            return
        min_event_time = min(time for time in lowest if time is not None)
        max_event_time = max(time for time in highest if time is not None)
        folded |= {"hours": [], "all_hours": spread(min_event_time, max_event_time, sum(timed))}


@dataclass(slots=True)
class FullFold:
    """The fold that tests each row, and measures ``delays`` unless it is None."""

    columns: Columns
    classifier: RowClassifier
    delays: DelayMeasurement | None = None

    def aggregate(self, df: DataFrame) -> DataFrame:
        """Return the aggregate by substream.

        The bounds that rows are judged by come from a join. As literals they would be part of the generated code. Every
        batch would compile it again and run it cold (a fifth of the time over ten million rows).
        """
        keys = {_key(index): key for index, key in enumerate(self.columns.keys())}
        source = df.select(*(key.alias(name) for name, key in keys.items()), self.columns.time(df).alias("time"))
        rows = source.crossJoin(F.broadcast(self.classifier.bounds(df.sparkSession)))
        time, late_below, on_time_from, latest = map(F.col, ("time", "late_below", "on_time_from", "latest"))
        measures = (
            F.max(credible(time, latest)).alias("max_event_time"),
            F.count(F.lit(1)).alias("rows"),
            F.count_if(is_updated(time, late_below, on_time_from)).alias("updated"),
            F.count_if(is_late(time, late_below)).alias("late"),
            F.count_if(time.isNull()).alias("null_event_time"),
            F.count_if(is_future(time, on_time_from, latest)).alias("future"),
        )
        parts = ["hour"] if self.delays is None else ["hour", "bucket"]
        measured = rows if self.delays is None else self.delays.with_buckets(rows, [*keys])
        by_part = measured.withColumn("hour", hour_of(time, latest)).groupBy(*keys, *parts).agg(*measures)
        counted = [F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in ("rows", *CLASSES)]
        lists = [_list_of("hour", "rows", "updated", "late").alias("hours")]
        if self.delays is not None:
            lists.append(_list_of("bucket", "rows").alias("delays"))
        return by_part.groupBy(*keys).agg(F.max("max_event_time").alias("max_event_time"), *counted, *lists)

    def judge(self, folded: Folded) -> list[bool]:
        """Return True for each row: the aggregate has all counts."""
        return [True] * len(folded["rows"])

    def add_hours(self, folded: Folded) -> None:
        """Remove the column of another fold; the aggregate has the hours and the delays."""
        folded.pop("min_event_time", None)
        if self.delays is None:
            folded["delays"] = []


@dataclass(frozen=True, slots=True)
class Posted:
    """The result of the executors' reports.

    Attributes:
        complete: Whether the coordinator has the whole fold.
        waited_s: The longest time in seconds that a task waited for the coordinator.
    """

    complete: bool
    waited_s: float


def on_executors(df: DataFrame, method: FoldMethod, tasks: int, reporter: Reporter) -> tuple[Fold, Posted] | None:
    """Fold a batch, and report the fold from at most ``tasks`` tasks.

    Returns:
        The fold and the result of the reports; None if the plain fold does not suffice.
    """
    # The shuffled data is small. With Spark's default of 200 partitions, the files would cost more than the fold.
    with setting(df.sparkSession, SHUFFLE_PARTITIONS, tasks):
        post = posting(reporter, method)
        folded = to_arrow(method.aggregate(df).mapInArrow(post, _POSTED_SQL)).to_pydict()
    waited_s, delivered, judged = (folded.pop(name) for name in ("waited_s", "delivered", "judged"))
    if not all(judged):
        return None
    return _fold_of(folded, method), Posted(all(delivered), max(waited_s, default=0.0))


def on_driver(df: DataFrame, method: FoldMethod, tasks: int) -> Fold | None:
    """Fold a batch that the driver reports. Return None if the plain fold does not suffice."""
    with setting(df.sparkSession, SHUFFLE_PARTITIONS, tasks):
        folded = _columns_of(to_arrow(method.aggregate(df)))
    if folded["rows"] == [0]:  # an aggregate without keys has a row even without input
        folded = {name: [] for name in folded}
    _add_names(folded, len(method.columns.keys()))
    return _fold_of(folded, method) if all(method.judge(folded)) else None


def posting(reporter: Reporter, method: FoldMethod) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function for ``mapInArrow`` that reports folded rows and passes them on.

    It adds to each row whether the fold has judged it, whether the coordinator has it, and how long the task waited.
    A failed report does not fail the task, which would repeat the fold: the driver reports it instead.
    """
    keys = len(method.columns.keys())

    def post(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            folded, count = _columns_of(batch), batch.num_rows
            _add_names(folded, keys)
            judged = method.judge(folded)
            # Rows that need the full fold are not reported: they may be too far ahead of the clock.
            delivered, waited_s = reporter.report(reports_of(folded)) if all(judged) else (False, 0.0)
            for name in ("min_event_time", "hours", "delays"):
                folded.setdefault(name, [None] * count)
            folded |= {"waited_s": [waited_s] * count, "delivered": [delivered] * count, "judged": judged}
            yield pa.RecordBatch.from_pydict({name: folded[name] for name in _POSTED.names}, schema=_POSTED)

    return post


def _fold_of(folded: Folded, method: FoldMethod) -> Fold:
    method.add_hours(folded)
    classifier = method.classifier
    return Fold(rule=classifier.rule, late_disposition=classifier.late_disposition, **folded)


def _columns_of(folded: pa.Table | pa.RecordBatch) -> Folded:
    """Return the columns of folded rows: event times as whole numbers, each hour and bucket once."""
    values = dict(zip(folded.schema.names, folded.columns, strict=True))
    columns: Folded = {
        name: whole_times(column) if name in ("max_event_time", "min_event_time") else column.to_pylist()
        for name, column in values.items()
    }
    for name in ("hours", "delays"):
        if name in columns:
            columns[name] = [merge_hours([of_each]) for of_each in columns[name]]
    return columns


def _add_names(folded: Folded, keys: int) -> None:
    """Replace the keys of folded rows by the names of their substreams."""
    values = [folded.pop(_key(index)) for index in range(keys)]
    count = len(folded["rows"])
    folded["substream"] = [name_of(value) for value in zip(*values, strict=True)] if keys else [WHOLE] * count


def _list_of(key: str, *counts: str) -> Any:
    return F.collect_list(F.when(F.col(key).isNotNull(), F.array(key, *counts)))


def _key(index: int) -> str:
    return f"key_{index}"
