"""The fold: a batch's event times, reduced to one row per source partition and substream, reported by executors.

The reduction runs in the JVM, as a partial aggregate; one Arrow task over the few rows that are left posts them and
hands them on, so that the driver gets the accounting from the same pass. (Measured against a fold on the driver, over
whole rows in Arrow and in Python: the cheapest one in which executors report.)
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, LongType, StringType, TimestampNTZType, TimestampType

from tidegate_spark.errors import InvalidUsage
from tidegate_spark.reporter import Reporter

NULL_SUBSTREAM = "(null)"
EMPTY_SUBSTREAM = "(empty)"
RULE = "row: event_time < pin"
_FOLDED = "partition int, substream string, top long, bottom long, on_time long, late long, null_event_time long"
_REPORTED = _FOLDED + ", waited_s double"


@dataclass(frozen=True, slots=True)
class Columns:
    """Where a row's event time and substream stand."""

    event_time: str
    substream: str

    def check(self, df: DataFrame) -> None:
        """:raises InvalidUsage: unless both columns are there and of a type that can be used."""
        types = {field.name: field.dataType for field in df.schema.fields}
        for role, name in (("event_time", self.event_time), ("substream", self.substream)):
            if name not in types:
                raise InvalidUsage(f"{role}={name!r} is no column of the stream; it has: {', '.join(types)}.")
        if not isinstance(types[self.event_time], (TimestampType, TimestampNTZType, LongType)):
            raise InvalidUsage(
                f"event_time={self.event_time!r} is of type {types[self.event_time].simpleString()}; "
                "it must be a timestamp, a timestamp_ntz (read as UTC) or a long (epoch milliseconds)."
            )
        if not isinstance(types[self.substream], StringType) and not _simple(types[self.substream]):
            raise InvalidUsage(
                f"substream={self.substream!r} is of type {types[self.substream].simpleString()}; "
                "name a column of a simple type, which is turned into a string."
            )

    def time(self, df: DataFrame) -> Column:
        """The event time of a row as a whole number: epoch milliseconds, rounded down, or the number itself."""
        column = F.col(f"`{self.event_time}`")
        match df.schema[self.event_time].dataType:
            case TimestampType():
                return F.unix_millis(column)
            case TimestampNTZType():
                # Not by a cast, which would read it in the session's time zone.
                return F.expr(f"timestampdiff(MILLISECOND, TIMESTAMP_NTZ'1970-01-01 00:00:00', `{self.event_time}`)")
            case _:
                return column

    def name(self) -> Column:
        """The name of a row's substream."""
        name = F.coalesce(F.col(f"`{self.substream}`").cast("string"), F.lit(NULL_SUBSTREAM))
        return F.when(name == "", F.lit(EMPTY_SUBSTREAM)).otherwise(name)


def _simple(kind: DataType) -> bool:
    return not any(hasattr(kind, part) for part in ("fields", "elementType", "keyType"))


def is_late(time: Column, pin: int | None) -> Column:
    """Whether a row that has an event time is late, by row: below the pin."""
    return F.lit(False) if pin is None else time < F.lit(pin)


def fold(df: DataFrame, columns: Columns, pin: int | None, tasks: int) -> DataFrame:
    """One row per source partition and substream; see ``_FOLDED``. ``top`` is null where no row has an event time."""
    source = df.select(
        F.spark_partition_id().alias("partition"), columns.name().alias("substream"), columns.time(df).alias("time")
    )
    time = F.col("time")
    late = is_late(time, pin)
    folded = source.groupBy("partition", "substream").agg(
        F.max(time).alias("top"),
        F.min(time).alias("bottom"),
        F.count_if(time.isNotNull() & ~late).alias("on_time"),
        F.count_if(time.isNotNull() & late).alias("late"),
        F.count_if(time.isNull()).alias("null_event_time"),
    )
    return folded.coalesce(tasks)


def posting(reporter: Reporter) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function for ``mapInArrow``: reports the folded rows, by source partition, and hands them on.

    Beside each row it says how long the task waited for the coordinator, if that was an outage.
    """

    def post(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            seen: dict[int, dict[str, list[object]]] = {}
            for row in batch.to_pylist():
                if row["top"] is None:
                    continue  # rows without an event time say nothing of it; the commit accounts for them
                columns = seen.setdefault(
                    row["partition"], {"substreams": [], "event_times": [], "min_event_times": [], "counts": []}
                )
                columns["substreams"].append(row["substream"])
                columns["event_times"].append(row["top"])
                columns["min_event_times"].append(row["bottom"])
                columns["counts"].append(row["on_time"] + row["late"])
            waited_s = sum(reporter.report(partition, columns) for partition, columns in seen.items())
            yield batch.append_column("waited_s", pa.array([waited_s] * batch.num_rows, pa.float64()))

    return post


@dataclass(frozen=True, slots=True)
class Account:
    """What became of a batch's rows, by substream; and how long its reports waited for the coordinator, in seconds.

    ``tops``: the highest event time of each substream that had one.
    """

    substreams: list[str]
    tops: dict[str, int]
    on_time: list[int]
    late: list[int]
    null_event_time: list[int]
    waited_s: float

    def document(self) -> dict[str, object]:
        """As the commit takes it."""
        return {
            "rule": RULE,
            "substreams": self.substreams,
            "on_time": self.on_time,
            "late": self.late,
            "null_event_time": self.null_event_time,
        }


def report(df: DataFrame, columns: Columns, pin: int | None, tasks: int, reporter: Reporter) -> Account:
    """Folds a batch, lets the executors report it, and returns the account of its rows."""
    folded = fold(df, columns, pin, tasks)
    totals: dict[str, list[int]] = {}
    tops: dict[str, int] = {}
    waited_s = 0.0
    for row in folded.mapInArrow(posting(reporter), _REPORTED).collect():
        waited_s = max(waited_s, row["waited_s"])
        if row["top"] is not None:
            tops[row["substream"]] = max(row["top"], tops.get(row["substream"], row["top"]))
        total = totals.setdefault(row["substream"], [0, 0, 0])
        for index, name in enumerate(("on_time", "late", "null_event_time")):
            total[index] += row[name]
    on_time, late, null_event_time = ([total[index] for total in totals.values()] for index in range(3))
    return Account(list(totals), tops, on_time, late, null_event_time, waited_s)
