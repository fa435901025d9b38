"""The event time column and the substream columns of a stream."""

from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, DataType, LongType, TimestampNTZType, TimestampType

from tidegate_spark.errors import InvalidUsage
from tidegate_spark.substreams import SOURCE_PARTITION, Substream


@dataclass(frozen=True, slots=True)
class Columns:
    """The event time column and the substream columns."""

    event_time: str
    substream: Substream

    @property
    def substream_columns(self) -> tuple[str, ...]:
        """The columns whose values identify a substream; empty for SOURCE_PARTITION and ``substream=None``."""
        if self.substream is None or self.substream is SOURCE_PARTITION:
            return ()
        return (self.substream,) if isinstance(self.substream, str) else tuple(self.substream)

    def check(self, df: DataFrame) -> None:
        """Raise InvalidUsage unless the columns exist and have supported types."""
        types = {field.name: field.dataType for field in df.schema.fields}
        if not self.substream_columns and self.substream not in (None, SOURCE_PARTITION):
            raise InvalidUsage(
                "substream is empty; it must name at least one column. If the whole stream is one substream, pass "
                "substream=None."
            )
        for role, name in (("event_time", self.event_time), *(("substream", name) for name in self.substream_columns)):
            if name not in types:
                of_a_struct = name.partition(".")[0] in types
                hint = " Copy the struct's field to a column first, with withColumn()." if of_a_struct else ""
                raise InvalidUsage(
                    f"{role}={name!r} is not a column of the stream; its columns are {', '.join(types)}.{hint}"
                )
        if not isinstance(types[self.event_time], (TimestampType, TimestampNTZType, LongType)):
            raise InvalidUsage(
                f"event_time={self.event_time!r} is of type {types[self.event_time].simpleString()}; "
                "it must be a timestamp, a timestamp_ntz (read as UTC) or a long (epoch milliseconds)."
            )
        for name in self.substream_columns:
            if (remedy := _remedy(types[name])) is not None:
                raise InvalidUsage(f"substream={name!r} is of type {types[name].simpleString()}: {remedy}.")

    def are_timestamps(self, df: DataFrame) -> bool:
        """Return whether event times are timestamps. Watermarks are then epoch milliseconds."""
        return not isinstance(df.schema[self.event_time].dataType, LongType)

    def time(self, df: DataFrame) -> Column:
        """Return the event time as a whole number. Timestamps become epoch milliseconds, rounded down."""
        named = quoted(self.event_time)
        match df.schema[self.event_time].dataType:
            case TimestampType():
                return F.unix_millis(F.col(named))
            case TimestampNTZType():
                # Add up the parts, because a cast or timestampdiff would apply the session's time zone.
                ntz = named
                return F.expr(
                    f"unix_date(cast({ntz} as date)) * 86400000L + hour({ntz}) * 3600000L + minute({ntz}) * 60000L"
                    f" + cast(floor(extract(second from {ntz}) * 1000) as long)"
                )
            case _:
                return F.col(named)

    def raw_time(self) -> Column:
        """Return the unconverted event time, which sorts like :meth:`time`. :func:`whole_times` converts it."""
        return column(self.event_time)

    def keys(self) -> list[Column]:
        """Return the columns that identify a row's substream, as strings."""
        if self.substream is SOURCE_PARTITION:
            return [F.spark_partition_id().cast("string")]
        return [column(name).cast("string") for name in self.substream_columns]


def whole_times(times: pa.Array | pa.ChunkedArray) -> list[int | None]:
    """Convert an Arrow array of event times to the whole numbers of :meth:`Columns.time`."""
    if not pa.types.is_timestamp(times.type):
        return list(times.to_pylist())
    assert times.type.unit == "us", "Spark's timestamps are in microseconds"
    return [None if micros is None else micros // 1000 for micros in times.cast(pa.int64()).to_pylist()]


def from_time(kind: DataType, time: Column) -> Column:
    """Convert a whole number of :meth:`Columns.time` back to an event time of type ``kind``."""
    match kind:
        case TimestampType():
            return F.timestamp_millis(time)
        case TimestampNTZType():
            # Interpret the number as UTC, in any time zone of the session.
            seconds = time.cast("decimal(18,3)") / F.lit(1000).cast("decimal(4,0)")
            epoch = F.expr("timestamp_ntz'1970-01-01 00:00:00'")
            return epoch + F.make_dt_interval(secs=seconds.cast("decimal(18,6)"))
        case _:
            return time


def column(name: str) -> Column:
    """Return a column by its exact name, which may contain any characters."""
    return F.col(quoted(name))


def quoted(name: str) -> str:
    """Return a name quoted for Spark's parser."""
    return "`" + name.replace("`", "``") + "`"


def _remedy(kind: DataType) -> str | None:
    """Return the remedy for a substream column of an unsupported type; None if the type is supported."""
    if any(hasattr(kind, part) for part in ("fields", "elementType", "keyType")):
        return "name a column of a simple type, such as one made by withColumn('part', F.col('a.b'))"
    if isinstance(kind, TimestampType):
        return "its text depends on the time zone of the session; cast it to a long, in a column of another name"
    if isinstance(kind, BinaryType):
        return "its values may not be text; convert it with hex(), or cast it to a string, in a column of another name"
    return None
