"""Folds a batch: its event times are reduced to one row for each substream.

The reduction is a partial aggregate in the JVM. In the mode ``executor``, one Arrow task over the few remaining rows
posts them and passes them on, so the driver gets the counts from the same pass. In the modes ``driver`` and
``observe`` the driver reports. (Measured and slower: folds over whole rows, in Arrow and in Python; a fold by source
partition and substream; ``DataFrame.observe`` on the user's action, which a count has to check.)

There are two folds. The *plain* one takes the lowest and the highest event time of each substream, and counts; that is
enough if all rows between them are on time. The *full* one tests each row, which takes half as long again. A batch
starts with the one that its predecessor ended with.
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
        """Return the aggregate by substream, with its keys in front."""

    def judge(self, folded: Folded) -> list[bool]:
        """Add the counts by class; return for which rows they are known."""

    def add_hours(self, folded: Folded) -> None:
        """Add the hours and the delays, as :class:`Fold` has them."""


@dataclass(slots=True)
class PlainFold:
    """The fold that tests no row. It measures no delays."""

    columns: Columns
    classifier: RowClassifier

    def aggregate(self, df: DataFrame) -> DataFrame:
        """Return the aggregate by substream. Its plan is the same for every batch, so Spark compiles it once."""
        keys = [key.alias(_key(index)) for index, key in enumerate(self.columns.keys())]
        time = self.columns.raw_time()
        return df.groupBy(*keys).agg(
            F.max(time).alias("max_event_time"),
            F.min(time).alias("min_event_time"),
            F.count(F.lit(1)).alias("rows"),
            F.count(time).alias("timed"),
        )

    def judge(self, folded: Folded) -> list[bool]:
        """Add the counts by class; they are known if all rows of a substream are on time."""
        timed = folded.pop("timed")
        folded["updated"] = folded["late"] = folded["future"] = [0] * len(timed)
        folded["null_event_time"] = [rows - known for rows, known in zip(folded["rows"], timed, strict=True)]
        return [*map(self.classifier.all_on_time, folded["min_event_time"], folded["max_event_time"])]

    def add_hours(self, folded: Folded) -> None:
        """Spread the rows over their hours: by substream or, if that would be too much, together."""
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
    """The fold that tests each row, and measures ``delays`` if it is to."""

    columns: Columns
    classifier: RowClassifier
    delays: DelayMeasurement | None = None

    def aggregate(self, df: DataFrame) -> DataFrame:
        """Return the aggregate by substream.

        The bounds that rows are judged by come from a join. As literals they would be part of the generated code, and
        every batch would compile it anew and run it cold (a fifth of the time over ten million rows).
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
        """Return that the counts of all rows are known."""
        return [True] * len(folded["rows"])

    def add_hours(self, folded: Folded) -> None:
        """Keep the hours and the delays that were counted."""
        folded.pop("min_event_time", None)
        if self.delays is None:
            folded["delays"] = []


@dataclass(frozen=True, slots=True)
class Posted:
    """What the executors reported.

    Attributes:
        complete: Whether the coordinator has the whole fold.
        waited_s: For how long a task waited for it.
    """

    complete: bool
    waited_s: float


def on_executors(df: DataFrame, method: FoldMethod, tasks: int, reporter: Reporter) -> tuple[Fold, Posted] | None:
    """Fold a batch and let at most ``tasks`` tasks report it.

    Returns:
        The fold and what was reported; None if the plain fold does not suffice.
    """
    # What remains after the shuffle is small. In Spark's default of 200 partitions the files alone would cost more
    # than the fold of a small batch.
    with setting(df.sparkSession, SHUFFLE_PARTITIONS, tasks):
        post = posting(reporter, method)
        folded = to_arrow(method.aggregate(df).mapInArrow(post, _POSTED_SQL)).to_pydict()
    waited_s, delivered, judged = (folded.pop(name) for name in ("waited_s", "delivered", "judged"))
    if not all(judged):
        return None
    return _fold_of(folded, method), Posted(all(delivered), max(waited_s, default=0.0))


def on_driver(df: DataFrame, method: FoldMethod, tasks: int) -> Fold | None:
    """Fold a batch, for the driver to report. Return None if the plain fold does not suffice."""
    with setting(df.sparkSession, SHUFFLE_PARTITIONS, tasks):
        folded = _columns_of(to_arrow(method.aggregate(df)))
    if folded["rows"] == [0]:  # without keys there is a row even without input
        folded = {name: [] for name in folded}
    _add_names(folded, len(method.columns.keys()))
    return _fold_of(folded, method) if all(method.judge(folded)) else None


def posting(reporter: Reporter, method: FoldMethod) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function for ``mapInArrow`` that reports folded rows and passes them on.

    Each row also says whether the fold has judged it, whether the coordinator has it, and for how long the task waited.
    A failed report does not fail the task, which would fold the rows again: the driver gets them and can wait better.
    """
    keys = len(method.columns.keys())

    def post(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            folded, count = _columns_of(batch), batch.num_rows
            _add_names(folded, keys)
            judged = method.judge(folded)
            # Rows that the full fold is to judge are not reported: they may be too far ahead of the clock.
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
    """Return the columns of folded rows: event times as whole numbers, counts of equal hours and buckets added up."""
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
