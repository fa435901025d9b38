"""The event time column and the substream columns of a stream.

Expressions are SQL text. PySpark makes several calls to the JVM for each operation on a ``Column``, and one for a text.
"""

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import BinaryType, DataType, LongType, TimestampNTZType, TimestampType

from tidegate_spark.errors import InvalidUsage
from tidegate_spark.substreams import SOURCE_PARTITION, SourcePartition, Substream


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
        self._check_names()
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

    def _check_names(self) -> None:
        if not isinstance(self.event_time, str):
            raise InvalidUsage(f"event_time={self.event_time!r} must be the name of a column, like 'departed_at'.")
        single = self.substream is None or isinstance(self.substream, (str, SourcePartition))
        if not single and not (isinstance(self.substream, (list, tuple)) and all(map(_is_text, self.substream))):
            raise InvalidUsage(
                f"substream={self.substream!r} must be the name of a column, a list of names, SOURCE_PARTITION or None."
            )

    def are_timestamps(self, df: DataFrame) -> bool:
        """Return whether event times are timestamps. Watermarks are then epoch milliseconds."""
        return not isinstance(df.schema[self.event_time].dataType, LongType)

    def time(self, df: DataFrame) -> str:
        """Return the event time as a whole number. Timestamps become epoch milliseconds, rounded down."""
        named = self.raw_time()
        match df.schema[self.event_time].dataType:
            case TimestampType():
                return f"unix_millis({named})"
            case TimestampNTZType():
                return of_ntz(named)
            case _:
                return named

    def raw_time(self) -> str:
        """Return the unconverted event time, which sorts like :meth:`time`. :func:`whole_times` converts it."""
        return quoted(self.event_time)

    def keys(self) -> list[str]:
        """Return the columns that identify a row's substream, as strings."""
        if self.substream is SOURCE_PARTITION:
            return ["cast(spark_partition_id() as string)"]
        return [f"cast({quoted(name)} as string)" for name in self.substream_columns]


def check_stream(method: str, df: Any) -> None:
    """Raise InvalidUsage unless ``df`` is a streaming DataFrame."""
    streaming = getattr(df, "isStreaming", None)
    if not isinstance(streaming, bool):
        raise InvalidUsage(f"{method}() takes a streaming DataFrame, not {df!r}.")
    if not streaming:
        raise InvalidUsage(f"{method}() needs a streaming DataFrame; read this one with spark.readStream.")


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def whole_times(times: pa.Array | pa.ChunkedArray) -> list[int | None]:
    """Convert an Arrow array of event times to the whole numbers of :meth:`Columns.time`."""
    if not pa.types.is_timestamp(times.type):
        return list(times.to_pylist())
    assert times.type.unit == "us", "Spark's timestamps are in microseconds"
    return [None if micros is None else micros // 1000 for micros in times.cast(pa.int64()).to_pylist()]


def of_ntz(time: str) -> str:
    """Return the epoch milliseconds of a time without a time zone, read as UTC, as SQL text."""
    # Add up the parts, because a cast or timestampdiff would apply the session's time zone.
    return (
        f"(unix_date(cast({time} as date)) * 86400000L + hour({time}) * 3600000L"
        f" + minute({time}) * 60000L + cast(floor(extract(second from {time}) * 1000) as long))"
    )


def from_time(kind: DataType, time: str) -> str:
    """Convert a whole number of :meth:`Columns.time` back to an event time of type ``kind``."""
    match kind:
        case TimestampType():
            return f"timestamp_millis({time})"
        case TimestampNTZType():
            # Interpret the number as UTC, in any time zone of the session.
            # As seconds alone, times more than 31,688 years from the epoch would exceed the interval's decimal(18,6).
            into_day = f"pmod({time}, 86400000L)"
            days = f"cast(({time} - {into_day}) div 86400000L as int)"
            seconds = f"cast(cast({into_day} as decimal(8,0)) / cast(1000 as decimal(4,0)) as decimal(18,6))"
            return f"timestamp_ntz'1970-01-01 00:00:00' + make_dt_interval({days}, 0, 0, {seconds})"
        case _:
            return time


def quoted(name: str) -> str:
    """Return a column name, which may contain any characters, quoted for Spark's parser."""
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
