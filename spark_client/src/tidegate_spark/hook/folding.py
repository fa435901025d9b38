"""The fold of a batch: the reduction of its event times to one row per substream.

The reduction is a partial aggregate in the JVM. Either the driver reports the reduced rows, or a few Arrow tasks report
them and return them, so that the driver gets the counts from the same pass. Such a task costs 0.08 s, because its rows
pass through a Python worker. It pays only for many substreams, which several tasks report at a time.

Measurements have shown that these alternatives are slower:

* folds over whole rows, in Arrow and in Python
* a fold by source partition and substream
* ``DataFrame.observe`` on the user's action, which needs an extra count

There are two folds. The *plain* fold computes the lowest and the highest event time of each substream and counts its
rows. The plain fold suffices if all event times between these two are on time. The *full* fold tests each row, which
takes 1.5 times as long. A batch starts with the plain fold unless delays are measured, or the previous batch had late,
updated or future rows.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from tidegate_spark.columns import Columns, whole_times
from tidegate_spark.hook.classify import RowClassifier, credible, is_future, is_late, is_updated, slot_number
from tidegate_spark.hook.delays import DelayMeasurement
from tidegate_spark.protocol.fold import (
    CLASSES,
    HOUR,
    HOURS_PER_COMMIT,
    LOWEST,
    Fold,
    hours_between,
    hours_of,
    merge_hours,
    spread,
)
from tidegate_spark.protocol.reporter import Reporter
from tidegate_spark.protocol.reports import reports_of
from tidegate_spark.spark_session import ADAPTIVE, SHUFFLE_PARTITIONS, setting, to_arrow
from tidegate_spark.substreams import WHOLE, name_of

Mode = Literal["auto", "executor", "driver"]
Folded = dict[str, Any]
"""The columns of a fold, by name, and the length of its slots."""

NUMBER = "slot_number"
"""Column with the number of a slot."""

_MEASURES = ("max_event_time", "rows", *CLASSES)
_POSTED = pa.schema(
    [("substream", pa.string())]
    + [(name, pa.int64()) for name in (*_MEASURES, "min_event_time")]
    + [(name, pa.list_(pa.list_(pa.int64()))) for name in ("hours", "delays")]
    + [("waited_s", pa.float64()), ("delivered", pa.bool_()), ("judged", pa.bool_())]
)


@dataclass(slots=True)
class FoldMethod(ABC):
    """A method of folding a batch."""

    columns: Columns
    classifier: RowClassifier
    slot: int | None = None
    """Length of the slots by which rows are counted; None if the job declares no frames."""

    @abstractmethod
    def aggregate(self, df: DataFrame) -> DataFrame:
        """Return the aggregate by substream. Its first columns are the keys of the substreams."""

    def aggregate_for_driver(self, df: DataFrame) -> DataFrame:
        """Return an aggregate that may have several rows of a substream, each with the number of its slot."""
        return self.aggregate(df)

    def judge(self, folded: Folded) -> list[bool]:
        """Add the counts by class, unless the aggregate has them. Return for each row whether its counts are known."""
        return [True] * len(folded["rows"])

    @abstractmethod
    def add_hours(self, folded: Folded) -> None:
        """Add the rows by hour and the delays, in the format of :class:`Fold`."""


class PlainFold(FoldMethod):
    """The fold that tests no row and measures no delays."""

    def aggregate_for_driver(self, df: DataFrame) -> DataFrame:
        """Return the aggregate by substream, and by slot if the rows are counted by slot.

        All batches have the same plan, so Spark compiles it once.
        """
        time = self.columns.raw_time()
        measures = (
            f"max({time}) AS max_event_time",
            f"min({time}) AS min_event_time",
            "count(1) AS rows",
            f"count({time}) AS timed",
        )
        keys = _named_keys(self.columns)
        if self.slot is None:
            return df.groupBy(*map(F.expr, keys)).agg(*map(F.expr, measures))
        whole = self.columns.time(df)
        slot = f"CASE WHEN {whole} >= {LOWEST}L THEN {slot_number(whole, self.slot)} END AS {NUMBER}"
        return df.groupBy(*map(F.expr, (*keys, slot))).agg(*map(F.expr, measures))

    def aggregate(self, df: DataFrame) -> DataFrame:
        """Return the aggregate by substream. With slots, the rows by slot are merged after another shuffle."""
        by_slot = self.aggregate_for_driver(df)
        if self.slot is None:
            return by_slot
        merged = (
            "max(max_event_time) AS max_event_time",
            "min(min_event_time) AS min_event_time",
            "coalesce(sum(rows), 0L) AS rows",  # without keys, an aggregate has a row even without input
            "coalesce(sum(timed), 0L) AS timed",
            f"collect_list(CASE WHEN {NUMBER} IS NOT NULL THEN array({NUMBER}, timed, 0L, 0L) END) AS hours",
        )
        names = [_key(index) for index in range(len(self.columns.keys()))]
        return by_slot.groupBy(*names).agg(*map(F.expr, merged))

    def judge(self, folded: Folded) -> list[bool]:
        """Add the counts by class. The counts are known for substreams whose rows are all on time."""
        timed = folded.pop("timed")
        folded["updated"] = folded["late"] = folded["future"] = [0] * len(timed)
        folded["null_event_time"] = [rows - known for rows, known in zip(folded["rows"], timed, strict=True)]
        return [*map(self.classifier.all_on_time, folded["min_event_time"], folded["max_event_time"])]

    def add_hours(self, folded: Folded) -> None:
        """Spread the rows over hours, by substream. If there are too many hours, combine all substreams."""
        lowest, highest = folded.pop("min_event_time"), folded["max_event_time"]
        if self.slot is not None:
            folded["delays"] = []
            _add_slots(folded, self.slot)
            return
        timed = [rows - unknown for rows, unknown in zip(folded["rows"], folded["null_event_time"], strict=True)]
        folded["delays"] = []
        if sum(map(hours_between, lowest, highest)) <= HOURS_PER_COMMIT:
            folded["hours"] = [*map(spread, lowest, highest, timed)]
            return
        min_event_time = min(time for time in lowest if time is not None)
        max_event_time = max(time for time in highest if time is not None)
        folded |= {"hours": [], "all_hours": spread(min_event_time, max_event_time, sum(timed))}


@dataclass(slots=True)
class FullFold(FoldMethod):
    """The fold that tests each row, and measures ``delays`` unless it is None."""

    delays: DelayMeasurement | None = None

    def aggregate(self, df: DataFrame) -> DataFrame:
        """Return the aggregate by substream.

        The bounds for the row classes come from a join. As literals, they would be part of the generated code.
        Every batch would then compile new code and run it cold (a fifth of the time for ten million rows).
        """
        keys = [_key(index) for index in range(len(self.columns.keys()))]
        source = df.selectExpr(*_named_keys(self.columns), f"{self.columns.time(df)} AS time")
        rows = source.crossJoin(F.broadcast(self.classifier.bounds(df.sparkSession)))
        measures = (
            f"max({credible('time', 'latest')}) AS max_event_time",
            "count(1) AS rows",
            f"count_if({is_updated('time', 'late_below', 'on_time_from')}) AS updated",
            f"count_if({is_late('time', 'late_below')}) AS late",
            "count_if(time IS NULL) AS null_event_time",
            f"count_if({is_future('time', 'on_time_from', 'latest')}) AS future",
        )
        parts = ["hour"] if self.delays is None else ["hour", "bucket"]
        measured = rows if self.delays is None else self.delays.with_buckets(rows, keys)
        hour = f"CASE WHEN ({credible('time', 'latest')}) IS NOT NULL THEN {slot_number('time', self.slot or HOUR)} END"
        by_hour = measured.selectExpr("*", f"{hour} AS hour")
        by_part = by_hour.groupBy(*keys, *parts).agg(*map(F.expr, measures))
        counted = [f"coalesce(sum({name}), 0L) AS {name}" for name in ("rows", *CLASSES)]
        lists = [f"{_list_of('hour', 'rows', 'updated', 'late')} AS hours"]
        if self.delays is not None:
            lists.append(f"{_list_of('bucket', 'rows')} AS delays")
        return by_part.groupBy(*keys).agg(*map(F.expr, ["max(max_event_time) AS max_event_time", *counted, *lists]))

    def add_hours(self, folded: Folded) -> None:
        """Remove the column that only the plain fold uses. The aggregate already has the hours and the delays."""
        folded.pop("min_event_time", None)
        if self.delays is None:
            folded["delays"] = []
        if self.slot is not None:
            _add_slots(folded, self.slot)


def _add_slots(folded: Folded, slot: int) -> None:
    """Replace the rows of each substream by slot by its rows by hour, and add the rows of all substreams by slot."""
    by_slot = folded["hours"]
    folded |= {"slot": slot, "slots": merge_hours(by_slot), "hours": [hours_of(slots, slot) for slots in by_slot]}


def on_executors(df: DataFrame, method: FoldMethod, tasks: int, reporter: Reporter) -> tuple[Fold, bool, float] | None:
    """Fold a batch, and report the fold from at most ``tasks`` tasks.

    Returns:
        None if the plain fold does not suffice. Otherwise the fold, whether the coordinator has the whole fold, and the
        longest time in seconds that a task waited for the coordinator.
    """
    with _few_partitions(df, tasks):
        post = posting(reporter, method)
        folded = to_arrow(method.aggregate(df).mapInArrow(post, from_arrow_schema(_POSTED))).to_pydict()
    waited_s, delivered, judged = (folded.pop(name) for name in ("waited_s", "delivered", "judged"))
    if not all(judged):
        return None
    return _fold_of(folded, method), all(delivered), max(waited_s, default=0.0)


def on_driver(df: DataFrame, method: FoldMethod, tasks: int) -> Fold | None:
    """Fold a batch that the driver reports. Return None if the plain fold does not suffice."""
    with _few_partitions(df, tasks):
        folded = _columns_of(to_arrow(method.aggregate_for_driver(df)))
    if folded["rows"] == [0]:  # an aggregate without keys has a row even without input
        folded = {name: [] for name in folded}
    _add_names(folded, len(method.columns.keys()))
    if NUMBER in folded:
        folded = _merged(folded)
    return _fold_of(folded, method) if all(method.judge(folded)) else None


def _merged(by_slot: Folded) -> Folded:
    """Return the rows of a plain fold by substream, with their numbers by slot, from rows by substream and slot."""
    merged: dict[str, list[Any]] = {}
    columns = (by_slot[name] for name in ("substream", NUMBER, "max_event_time", "min_event_time", "rows", "timed"))
    for name, number, highest, lowest, rows, timed in zip(*columns, strict=True):
        slot = [] if number is None else [[number, timed, 0, 0]]
        known = merged.get(name)
        if known is None:
            merged[name] = [highest, lowest, rows, timed, slot]
            continue
        known[0] = max((time for time in (known[0], highest) if time is not None), default=None)
        known[1] = min((time for time in (known[1], lowest) if time is not None), default=None)
        known[2] += rows
        known[3] += timed
        known[4] += slot
    found = zip(*merged.values(), strict=True) if merged else ((),) * 5
    columns_of = zip(("max_event_time", "min_event_time", "rows", "timed", "hours"), map(list, found), strict=True)
    return {"substream": [*merged], **dict(columns_of)}


@contextmanager
def _few_partitions(df: DataFrame, tasks: int) -> Iterator[None]:
    """Run a fold as one job, with ``tasks`` partitions after its shuffle.

    The shuffled data is small. With Spark's default of 200 partitions, the files would cost more than the fold.
    """
    with setting(df.sparkSession, SHUFFLE_PARTITIONS, tasks), setting(df.sparkSession, ADAPTIVE, "false"):
        yield


def posting(reporter: Reporter, method: FoldMethod) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function for ``mapInArrow`` that reports folded rows and passes them on.

    The function adds three columns: whether a row's counts are known (``judged``), whether the coordinator has the row
    (``delivered``), and the time in seconds that the task waited (``waited_s``).

    A failed report does not fail the task, because Spark would then repeat the fold. The driver reports the fold
    instead.
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
    return Fold(late_disposition=classifier.late_disposition, **folded)


def _columns_of(folded: pa.Table | pa.RecordBatch) -> Folded:
    """Return the columns of folded rows. Event times become whole numbers; equal hours and buckets are merged."""
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


def _list_of(key: str, *counts: str) -> str:
    return f"collect_list(CASE WHEN {key} IS NOT NULL THEN array({', '.join((key, *counts))}) END)"


def _named_keys(columns: Columns) -> list[str]:
    return [f"{key} AS {_key(index)}" for index, key in enumerate(columns.keys())]


def _key(index: int) -> str:
    return f"key_{index}"
