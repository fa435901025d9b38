"""The fold: a batch's event times, reduced to one row per substream.

The reduction runs in the JVM, as a partial aggregate. In the mode ``executor`` one Arrow task over the few rows that
are left posts them, and hands them on, so that the driver gets the account from the same pass. In the other two the
driver gets them and reports. (Measured against folds over whole rows, in Arrow and in Python; against one by source
partition and substream, which has more rows to report for no less work; and for a single substream against
``DataFrame.observe`` on the user's own action. That one is exact only where the action reads everything once, so it
has to be checked by a count; with that it takes longer than the plain aggregate of ``observe``.)

There are two folds. The *plain* one takes the lowest and the highest event time of each substream, and counts: where
all between them are on time, it has said everything, at little more than the price of reading. Else the *full* one
tests each row, which takes half as long again. A batch begins with the one that its predecessor ended with.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Self

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidegate_spark.columns import Columns, whole_times
from tidegate_spark.errors import InvalidUsage
from tidegate_spark.judgement import Judgement, LateDisposition, credible, future, late, updated
from tidegate_spark.ledger import HOURS_KEPT, Hours, hour_of, hours_between, spread, together
from tidegate_spark.measuring import Measuring
from tidegate_spark.reporter import Reporter, reports_of
from tidegate_spark.session import SHUFFLE_PARTITIONS, setting
from tidegate_spark.substreams import WHOLE, name_of
from tidegate_spark.versions import to_arrow

Mode = Literal["executor", "driver", "observe"]

MOST_SUBSTREAMS = 100_000
LARGEST_ACCOUNT_BYTES = 4 * 1024 * 1024 - 1024
"""What a coordinator takes in one call, as it comes; less the rest of the call."""
COUNTED_WITHOUT_A_LOOK = 3_000
"""Substreams whose account is within that, whatever their names, with all the hours that there may be."""

HOURS_PER_COMMIT = 30_000
"""Hours of substreams that go into one account."""

CLASSES = ("updated", "late", "null_event_time", "future")
_MEASURES = ("max_event_time", "rows", *CLASSES)
_POSTED = pa.schema(
    [("substream", pa.string())]
    + [(name, pa.int64()) for name in _MEASURES]
    + [("min_event_time", pa.int64())]
    + [(name, pa.list_(pa.list_(pa.int64()))) for name in ("hours", "delays")]
    + [("waited_s", pa.float64()), ("delivered", pa.bool_()), ("judged", pa.bool_())]
)
_POSTED_SQL = (
    "substream string, max_event_time long, rows long, updated long, late long, null_event_time long, future long, "
    "min_event_time long, hours array<array<long>>, delays array<array<long>>, waited_s double, delivered boolean, "
    "judged boolean"
)


@dataclass(frozen=True, slots=True)
class Fold:
    """Columns of equal length, an entry for each substream of a batch, and the ``rule`` that its rows were judged by.

    ``max_event_time``: the highest event time that can be true, None where no row has one. ``rows``: all of them;
    ``updated``,
    ``late``, ``null_event_time``, ``future``: how many are of these classes, the others being on time. ``hours``: those
    that have an event time, by hour; where none is late, they are spread over the hours; or no column, where that would
    be too much: then ``all_hours`` has them of all substreams together. ``delays``: how many came how far behind, as
    pairs of a bucket and that; or no column, where it was not measured. ``late_disposition``: what becomes of the late
    ones.
    """

    rule: str
    substream: list[str]
    max_event_time: list[int | None]
    rows: list[int]
    updated: list[int]
    late: list[int]
    null_event_time: list[int]
    future: list[int]
    hours: list[Hours] = field(default_factory=list)
    all_hours: Hours = field(default_factory=list)
    delays: list[list[list[int]]] = field(default_factory=list)
    late_disposition: LateDisposition = "dropped"

    def document(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, document: dict[str, Any]) -> Self:
        return cls(**document)

    @classmethod
    def together(cls, folds: Sequence[Self]) -> Self:
        """The fold of all the rows of folds by the same rule, of which there is at least one."""
        max_event_times: dict[str, int | None] = {}
        counts: dict[str, list[int]] = {}
        hours: dict[str, list[Hours]] = {}
        for fold in folds:
            for name, of_each in zip(fold.substream, fold.hours, strict=False):
                hours.setdefault(name, []).append(of_each)
            measures = zip(*(getattr(fold, name) for name in ("rows", *CLASSES)), strict=True)
            for name, max_event_time, counted in zip(fold.substream, fold.max_event_time, measures, strict=True):
                seen = [known for known in (max_event_time, max_event_times.get(name)) if known is not None]
                max_event_times[name] = max(seen, default=None)
                counts[name] = [*map(sum, zip(counts.get(name, [0] * len(counted)), counted, strict=True))]
        columns = zip(("rows", *CLASSES), map(list, zip(*counts.values(), strict=True)), strict=True)
        by_hour = [together(hours.get(name, [])) for name in max_event_times]
        one = folds[0]
        return cls(
            rule=one.rule,
            late_disposition=one.late_disposition,
            substream=list(max_event_times),
            max_event_time=list(max_event_times.values()),
            hours=by_hour,
            all_hours=together(fold.all_hours for fold in folds),
            **dict(columns),
        )

    def reports(self) -> Iterator[dict[str, list[Any]]]:
        """What is to be reported, in the coordinator's columns."""
        return reports_of(self.document())

    def reported(self) -> int:
        """Of how many substreams there is something to report."""
        return sum(len(report["substreams"]) for report in self.reports())

    def max_event_times(self) -> dict[str, int]:
        """The highest event time of each substream that has one."""
        return {
            name: max_event_time
            for name, max_event_time in zip(self.substream, self.max_event_time, strict=True)
            if max_event_time is not None
        }

    def count(self, row_class: str) -> int:
        """How many rows of the batch are of a class: ``on_time``, or one of :data:`CLASSES`."""
        if row_class == "on_time":
            return sum(self.rows) - sum(self.count(other) for other in CLASSES)
        counts: list[int] = getattr(self, row_class)
        return sum(counts)

    def named(self, row_class: str) -> list[str]:
        """The substreams that have rows of one of :data:`CLASSES`."""
        counts = getattr(self, row_class)
        return sorted({name for name, count in zip(self.substream, counts, strict=True) if count})

    def check_size(self) -> None:
        """:raises InvalidUsage: where the account is more than a coordinator takes, as long as nothing was done yet."""
        if self.is_too_large():
            raise InvalidUsage(
                f"This batch has {len(self.substream):,} substreams. A coordinator takes the account of "
                f"{MOST_SUBSTREAMS:,} in a batch, in {LARGEST_ACCOUNT_BYTES:,} bytes. "
                "Choose a coarser substream, or smaller batches (maxFilesPerTrigger, maxOffsetsPerTrigger)."
            )

    def is_too_large(self) -> bool:
        """Whether the account by substream is more than a coordinator takes."""
        return not self._fits(self._account())

    def _fits(self, account: dict[str, Any]) -> bool:
        if len(self.substream) < COUNTED_WITHOUT_A_LOOK:
            return True
        return len(self.substream) <= MOST_SUBSTREAMS and len(json.dumps(account)) <= LARGEST_ACCOUNT_BYTES

    def account(self) -> dict[str, Any]:
        """What became of the rows, as a commit takes it: by substream, or as a whole where that is too large; and by
        hour, where that does not make it so.
        """
        if self.is_too_large():
            totals = {name: [self.count(name)] for name in ("on_time", *CLASSES)}
            whole = {"rule": self.rule, "substreams": [WHOLE], "late_disposition": self.late_disposition, **totals}
            return whole | {"hours": [self._all_hours()]}
        account = self._account()
        return next(detailed for by_hour in self._by_hour() if self._fits(detailed := account | by_hour))

    def _all_hours(self) -> Hours:
        """A coordinator keeps no more, so nothing is lost with the others."""
        return together([self.all_hours, *self.hours])[-HOURS_KEPT:]

    def _by_hour(self) -> Iterator[dict[str, Any]]:
        """What may go with an account, the most telling first."""
        of_all = self._all_hours()
        if not of_all:
            yield {}
            return
        first = of_all[0][0]
        kept = [[entry for entry in hours if entry[0] >= first] for hours in self.hours]
        if kept and sum(map(len, kept)) <= HOURS_PER_COMMIT:
            yield {"hours": kept}
        late = [[entry for entry in hours if any(entry[2:])] for hours in kept]
        if any(late) and sum(map(len, late)) <= HOURS_PER_COMMIT:
            yield {"hours": late, "all_hours": of_all}
        yield {"all_hours": of_all}
        yield {}

    def _account(self) -> dict[str, Any]:
        columns = {name: getattr(self, name) for name in CLASSES}
        others = zip(*columns.values(), strict=True)
        on_time = [rows - sum(counts) for rows, counts in zip(self.rows, others, strict=True)]
        return {
            "rule": self.rule,
            "substreams": self.substream,
            "on_time": on_time,
            "late_disposition": self.late_disposition,
            **columns,
        }


@dataclass(frozen=True, slots=True)
class Posted:
    """How much of a fold the executors got to the coordinator, and for how long they waited for it, in seconds."""

    complete: bool
    waited_s: float


def on_executors(
    df: DataFrame,
    columns: Columns,
    judgement: Judgement,
    tasks: int,
    reporter: Reporter,
    plain: bool,
    measuring: Measuring | None = None,
) -> tuple[Fold, Posted] | None:
    """Folds a batch and lets the executors report it, in so many tasks at the most.

    ``plain``: in the plain way, which measures nothing; None where that has not told everything.
    """
    folded = _plainly(df, columns) if plain else _fully(df, columns, judgement, measuring)
    with setting(df.sparkSession, SHUFFLE_PARTITIONS, tasks):
        post = posting(reporter, len(columns.keys()), judgement, plain)
        posted = to_arrow(folded.mapInArrow(post, _POSTED_SQL)).to_pydict()
    waited_s, delivered, judged = (posted.pop(name) for name in ("waited_s", "delivered", "judged"))
    if not all(judged):
        return None
    if measuring is None:
        posted["delays"] = []
    min_event_times = posted.pop("min_event_time")
    if plain:
        posted |= _spread_over_hours(min_event_times, posted)
    return Fold(rule=judgement.rule, late_disposition=judgement.late_disposition, **posted), Posted(
        all(delivered), max(waited_s, default=0.0)
    )


def on_driver(
    df: DataFrame, columns: Columns, judgement: Judgement, tasks: int, plain: bool, measuring: Measuring | None = None
) -> Fold | None:
    """Folds a batch, for the driver to report. See :func:`on_executors`."""
    with setting(df.sparkSession, SHUFFLE_PARTITIONS, tasks):
        fold = _plainly(df, columns) if plain else _fully(df, columns, judgement, measuring)
        folded = _columns_of(to_arrow(fold))
    _merge_lists(folded)
    if folded["rows"] == [0]:  # without keys there is a row even for no input
        folded = {name: [] for name in folded}
    folded["substream"] = _names(folded, len(columns.keys()), len(folded["rows"]))
    if plain:
        if not all(_judge_plainly(folded, judgement)):
            return None
        folded |= _spread_over_hours(folded.pop("min_event_time"), folded)
    return Fold(rule=judgement.rule, late_disposition=judgement.late_disposition, **folded)


def _plainly(df: DataFrame, columns: Columns) -> DataFrame:
    """The plain fold of a batch, with its keys in front. Its plan is the same for every batch, so Spark compiles it
    once.
    """
    keys = [key.alias(_key(index)) for index, key in enumerate(columns.keys())]
    time = columns.raw_time()
    return df.groupBy(*keys).agg(
        F.max(time).alias("max_event_time"),
        F.min(time).alias("min_event_time"),
        F.count(F.lit(1)).alias("rows"),
        F.count(time).alias("timed"),
    )


def _columns_of(folded: pa.Table | pa.RecordBatch) -> dict[str, list[Any]]:
    """Folded rows, with event times as whole numbers."""
    values = dict(zip(folded.schema.names, folded.columns, strict=True))
    return {
        name: whole_times(column) if name in ("max_event_time", "min_event_time") else column.to_pylist()
        for name, column in values.items()
    }


def _judge_plainly(folded: dict[str, list[Any]], judgement: Judgement) -> list[bool]:
    """Makes a full fold of a plain one, but for its hours; returns for which of its rows that is right."""
    min_event_times, timed = folded["min_event_time"], folded.pop("timed")
    folded["updated"] = folded["late"] = folded["future"] = [0] * len(timed)
    folded["null_event_time"] = [rows - known for rows, known in zip(folded["rows"], timed, strict=True)]
    return [
        judgement.is_plain(min_event_time, max_event_time)
        for min_event_time, max_event_time in zip(min_event_times, folded["max_event_time"], strict=True)
    ]


def _fully(df: DataFrame, columns: Columns, judgement: Judgement, measuring: Measuring | None) -> DataFrame:
    """The full fold of a batch, with its keys in front.

    The bounds that rows are judged by come as a row to join with: as literals they would be part of the generated code,
    which would be compiled anew for every batch, and run cold (a fifth of the time over ten million rows).

    What is left after the shuffle is little. In as many partitions as Spark has by default, 200, the files alone would
    cost more than the fold of a small batch: hence the setting around the calls, in the session of this query.
    """
    keys = {_key(index): key for index, key in enumerate(columns.keys())}
    source = df.select(*(key.alias(name) for name, key in keys.items()), columns.time(df).alias("time"))
    time, late_below, on_time_from, latest = map(F.col, ("time", "late_below", "on_time_from", "latest"))
    judged = source.crossJoin(F.broadcast(judgement.bounds(df.sparkSession)))
    measures = (
        F.max(credible(time, latest)).alias("max_event_time"),
        F.count(F.lit(1)).alias("rows"),
        F.count_if(updated(time, late_below, on_time_from)).alias("updated"),
        F.count_if(late(time, late_below)).alias("late"),
        F.count_if(time.isNull()).alias("null_event_time"),
        F.count_if(future(time, on_time_from, latest)).alias("future"),
    )
    parts = ["hour"] if measuring is None else ["hour", "bucket"]
    measured = judged if measuring is None else measuring.put_beside(judged, [*keys])
    by_part = measured.withColumn("hour", hour_of(time, latest)).groupBy(*keys, *parts).agg(*measures)
    counted = [F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in ("rows", *CLASSES)]
    lists = [
        F.collect_list(F.when(F.col("hour").isNotNull(), F.array("hour", "rows", "updated", "late"))).alias("hours")
    ]
    if measuring is not None:
        lists.append(F.collect_list(F.when(F.col("bucket").isNotNull(), F.array("bucket", "rows"))).alias("delays"))
    return by_part.groupBy(*keys).agg(F.max("max_event_time").alias("max_event_time"), *counted, *lists)


def _merge_lists(folded: dict[str, list[Any]]) -> None:
    """What was counted by hour and by bucket, together, by each of them."""
    for name in ("hours", "delays"):
        if name in folded:
            folded[name] = [together([of_each]) for of_each in folded[name]]


def _spread_over_hours(min_event_times: list[int | None], folded: dict[str, list[Any]]) -> dict[str, Any]:
    """The hours of rows that are on time, all of them: by substream, or together, where that would be too much."""
    timed = [rows - unknown for rows, unknown in zip(folded["rows"], folded["null_event_time"], strict=True)]
    if sum(map(hours_between, min_event_times, folded["max_event_time"])) <= HOURS_PER_COMMIT:
        return {"hours": [*map(spread, min_event_times, folded["max_event_time"], timed)]}
    min_event_time = min(time for time in min_event_times if time is not None)
    max_event_time = max(time for time in folded["max_event_time"] if time is not None)
    return {"hours": [], "all_hours": spread(min_event_time, max_event_time, sum(timed))}


def _key(index: int) -> str:
    return f"key_{index}"


def _names(folded: dict[str, list[Any]], keys: int, count: int) -> list[str]:
    """Names for folded rows, in place of their keys."""
    values = [folded.pop(_key(index)) for index in range(keys)]
    return [name_of(value) for value in zip(*values, strict=True)] if keys else [WHOLE] * count


def posting(
    reporter: Reporter, keys: int, judgement: Judgement, plain: bool
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function for ``mapInArrow``: reports folded rows, and hands them on under their substreams' names.

    ``keys``: how many columns in front name the substream. Beside each row it says whether the fold has judged it,
    whether the coordinator has it, and for how long the task waited for that. A task never fails over it: its rows
    would be folded again, and the driver, which gets them, can ask, begin and wait in better ways.
    """

    def post(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            folded, count = _columns_of(batch), batch.num_rows
            _merge_lists(folded)
            folded["substream"] = _names(folded, keys, count)
            judged = _judge_plainly(folded, judgement) if plain else [True] * count
            # Of what is to be judged anew nothing is said: it may be too far ahead of the clock.
            delivered, waited_s = reporter.report(reports_of(folded)) if all(judged) else (False, 0.0)
            for name in ("min_event_time", "hours", "delays"):
                folded.setdefault(name, [None] * count)
            folded |= {"waited_s": [waited_s] * count, "delivered": [delivered] * count, "judged": judged}
            yield pa.RecordBatch.from_pydict({name: folded[name] for name in _POSTED.names}, schema=_POSTED)

    return post
