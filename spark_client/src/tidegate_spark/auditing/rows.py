"""The rows of the batches, read from the sources again, and counted in one aggregate.

Each source becomes one DataFrame whose rows have the number of their batch. The aggregate has a group for each batch,
substream and slot: a window, or a minute if the query judges each row by its own time.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import AtomicType, TimestampNTZType, TimestampType

from tidegate_spark.errors import InvalidUsage

BATCH = "tidegate_batch"
"""Column with the number of the batch, or with the hash of the file for which it is known. ``read`` must keep it."""

NO_SUBSTREAM = "(null)"
"""The substream of rows that have none."""

MOST_GROUPS = 2_000_000
"""Maximum number of groups, which take some hundred bytes each."""

ROW_SLOT_MS = 60_000
"""Width of the slots of rows that are judged by their own times."""

Read = Callable[[DataFrame], DataFrame]


@dataclass(frozen=True, slots=True)
class Window:
    """The windows of a query, as in ``F.window``. All are in milliseconds."""

    size_ms: int
    slide_ms: int
    start_ms: int = 0

    @property
    def is_sliding(self) -> bool:
        """Whether a row is in several windows."""
        return self.slide_ms < self.size_ms


@dataclass(frozen=True, slots=True)
class SourceRows:
    """The rows of one source.

    Attributes:
        number: Number of the source in the query.
        rows: The rows, with the column ``tidegate_batch``.
        event_time: Event time: a column, or an expression of SQL.
        substream: Substream: a column, or an expression of SQL.
        batches: The columns ``tidegate_batch`` and ``number``, the number of the batch; None if both are the same.
        is_logged: Whether the watermarks of the batches are in the log, so that each row is compared with one.
    """

    number: int
    rows: DataFrame
    event_time: str
    substream: str
    batches: DataFrame | None = None
    is_logged: bool = True


@dataclass(frozen=True, slots=True)
class Group:
    """Rows of a source, batch, substream and slot.

    Attributes:
        source: Number of the source.
        batch: Number of the batch.
        substream: The substream; empty if the source has only one.
        end: End of the slot (epoch milliseconds); None for rows without an event time.
        rows: Number of rows.
        highest: Highest event time (epoch milliseconds); None for rows without one.
        below: Number of rows at or below the late-row watermark of the batch.
    """

    source: int
    batch: int
    substream: str
    end: int | None
    rows: int
    highest: int | None
    below: int


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file of a source.

    Attributes:
        url: Its URL, as in Spark's metadata of a row.
        batch: Number of the batch that has read it.
        modified_us: Time of its modification, in microseconds.
        size: Its size in bytes.
    """

    url: str
    batch: int
    modified_us: int
    size: int


def files_with_batches(
    spark: SparkSession, rows: DataFrame, files: Sequence[SourceFile]
) -> tuple[DataFrame, DataFrame]:
    """Add a hash of the file to the rows of files; return them, and the number of the batch by hash.

    A group by a hash of 8 bytes takes less time for each row than one by a path or by the number from a join. The hash
    of a time and a size takes half the time of that of a path, if no two files have the same.

    Args:
        spark: The session.
        rows: Rows of the files, directly from the reader.
        files: The files.
    """
    are_told_apart = len({(file.modified_us, file.size) for file in files}) == len(files)
    metadata = F.col("_metadata")
    of_row = (
        F.xxhash64(F.unix_micros(metadata["file_modification_time"]), metadata["file_size"])
        if are_told_apart
        else F.xxhash64(metadata["file_path"])
    )
    known = spark.createDataFrame(
        [(file.url, file.modified_us, file.size, file.batch) for file in files],
        "url string, modified_us bigint, size bigint, number bigint",
    )
    of_file = F.xxhash64("modified_us", "size") if are_told_apart else F.xxhash64("url")
    return rows.withColumn(BATCH, of_row), known.select(of_file.alias(BATCH), "number")


def kafka_with_batches(rows: DataFrame, ends: Mapping[tuple[str, int], Sequence[tuple[int, int]]]) -> DataFrame:
    """Add the number of the batch to the records of Kafka.

    Args:
        rows: Records, directly from the reader.
        ends: For each topic and partition: the batches, and the offsets at which they end, in order.
    """
    spark = rows.sparkSession
    bounds = spark.createDataFrame(
        [(topic, number, [end for _, end in of], [batch for batch, _ in of]) for (topic, number), of in ends.items()],
        "topic string, partition int, tidegate_ends array<bigint>, tidegate_batches array<bigint>",
    )
    joined = rows.join(F.broadcast(bounds), ["topic", "partition"])
    place = F.size(F.filter("tidegate_ends", lambda end: end <= F.col("offset")))
    return joined.withColumn(BATCH, F.get("tidegate_batches", place)).drop("tidegate_ends", "tidegate_batches")


def count(sources: Iterable[SourceRows], late: Mapping[int, int], window: Window | None) -> list[Group]:
    """Return the groups of all rows, from one aggregate.

    Args:
        sources: The rows.
        late: Watermark with which the rows of a batch are compared, by batch, where it is known.
        window: The windows; None if the query judges each row by its own time.

    Raises:
        InvalidUsage: If a column is missing or has another type, or if there are too many groups.
    """
    counted = None
    for source in sources:
        groups = _groups(source, late, window)
        counted = groups if counted is None else counted.unionByName(groups)
    assert counted is not None
    try:
        found = counted.limit(MOST_GROUPS + 1).collect()
    except PySparkException as error:  # a malformed value, a broken file, or a broker that does not answer
        raise InvalidUsage(f"The rows cannot be read: {str(error).splitlines()[0]}") from None
    if len(found) > MOST_GROUPS:
        raise InvalidUsage(
            f"There are more than {MOST_GROUPS:,} groups of rows by batch, substream and window: pass a substream with "
            "fewer values, such as the region in place of the device."
        )
    read = [Group(*row) for row in found]
    if any(group.batch is None for group in read):
        raise InvalidUsage("Files of the source have changed since the audit has listed them: start the audit again.")
    return read


def lost_examples(
    sources: Iterable[SourceRows], late: Mapping[int, int], window: Window | None, number: int
) -> list[dict[str, Any]]:
    """Return lost rows with all their columns, and the watermark that they were compared with.

    Args:
        sources: The rows.
        late: Watermark with which the rows of a batch are compared, by batch.
        window: The windows; None if the query judges each row by its own time.
        number: Number of rows.
    """
    found: list[dict[str, Any]] = []
    for source in sources:
        rows = source.rows
        joined = rows.join(F.broadcast(_late_of(source, late).withColumnRenamed("late", "tidegate_late")), BATCH)
        event_time = expression(rows, "event_time", source.event_time).cast("timestamp")
        if window is None:
            lost = joined.where(F.unix_micros(event_time) <= F.col("tidegate_late") * 1000)
        else:
            ended = joined.withColumn("tidegate_end", _ends(F.unix_millis(event_time), window))
            lost = ended.where("tidegate_end <= tidegate_late")
        text = F.timestamp_millis("tidegate_late").alias("watermark")
        columns = [name for name in rows.columns if name != BATCH]
        shown = lost.select(*(F.col(f"`{name}`") for name in columns), text).limit(number - len(found))
        # PySpark returns these in the time zone of the process, without saying so.
        times = {field.name for field in shown.schema if isinstance(field.dataType, TimestampType)}
        for row in shown.collect():
            values = row.asDict(recursive=True).items()
            found.append({name: value.astimezone(UTC) if name in times and value else value for name, value in values})
        if len(found) == number:
            break
    return found


def _groups(source: SourceRows, late: Mapping[int, int], window: Window | None) -> DataFrame:
    rows = source.rows
    if BATCH not in rows.columns:
        raise InvalidUsage(
            f"read() of source {source.number} drops the column {BATCH}: keep it, as in rows.select('{BATCH}', …)."
        )
    substream = expression(rows, f"substream of source {source.number}", source.substream)
    event_time = expression(rows, f"event_time of source {source.number}", source.event_time)
    rows = rows.select(BATCH, event_time.alias("t"), substream.alias("substream"))
    if not isinstance(rows.schema["substream"].dataType, AtomicType):
        rows = rows.withColumn("substream", F.col("substream").cast("string"))  # maps have no groups
    kind = rows.schema["t"].dataType
    if isinstance(kind, TimestampNTZType):
        if rows.sparkSession.conf.get("spark.sql.session.timeZone") not in ("UTC", "Etc/UTC", "Z"):
            raise InvalidUsage(
                f"{source.event_time} is a timestamp without a time zone, which Spark compares as UTC: set "
                "spark.sql.session.timeZone to UTC for the audit."
            )
        rows = rows.withColumn("t", F.col("t").cast("timestamp"))
    elif not isinstance(kind, TimestampType):
        raise InvalidUsage(
            f"The event time {source.event_time} of source {source.number} has the type {kind.simpleString()}: pass "
            "what the query passes to withWatermark, such as 'to_timestamp(t)', or the schema of the files."
        )
    # Spark compares microseconds with the watermark, and takes the highest event time in milliseconds.
    micros, millis = F.unix_micros("t"), F.unix_millis("t")
    rows = rows.withColumn("end", _ends(millis, window or Window(ROW_SLOT_MS, ROW_SLOT_MS)))
    if late and source.is_logged:
        rows = rows.join(F.broadcast(_late_of(source, late)), BATCH, "left")
        below = F.count_if(micros <= F.col("late") * 1000)
    else:
        below = F.lit(0).cast("bigint")
    groups = rows.groupBy(BATCH, "substream", "end").agg(
        F.count("*").alias("rows"), F.max(millis).alias("highest"), below.alias("below")
    )
    # From here on, each row is a group: its number and name cost little.
    if source.batches is not None:
        groups = groups.join(F.broadcast(source.batches), BATCH, "left").drop(BATCH).withColumnRenamed("number", BATCH)
    name = F.coalesce(F.col("substream").cast("string"), F.lit(NO_SUBSTREAM)).alias("substream")
    return groups.groupBy(F.lit(source.number).alias("source"), BATCH, name, "end").agg(
        F.sum("rows").alias("rows"), F.max("highest").alias("highest"), F.sum("below").alias("below")
    )


def _late_of(source: SourceRows, late: Mapping[int, int]) -> DataFrame:
    """Return the watermarks of the batches in the column ``late``, by the column ``tidegate_batch`` of the rows."""
    known = source.rows.sparkSession.createDataFrame([*late.items()], "number bigint, late bigint")
    if source.batches is None:
        return known.withColumnRenamed("number", BATCH)
    return source.batches.join(F.broadcast(known), "number").drop("number")


def _ends(millis: Column, window: Window) -> Column:
    """Return the end of the window of a time; with sliding windows, a row for each. F.window would drop nulls."""
    size, slide, start = window.size_ms, window.slide_ms, window.start_ms
    last = millis - F.pmod(millis - F.lit(start), F.lit(slide)) + F.lit(size)
    if slide == size:
        return last
    earlier = F.sequence(F.lit(0).cast("bigint"), F.lit(-(-size // slide) - 1).cast("bigint"))
    ends = F.filter(F.transform(earlier, lambda number: last - number * slide), lambda end: end > millis)
    return F.explode_outer(F.when(millis.isNotNull(), ends))


def expression(rows: DataFrame, what: str, text: str) -> Column:
    """Return a column, or an expression of SQL.

    Args:
        rows: The rows.
        what: What it is, for the error.
        text: Name of the column, or the expression.

    Raises:
        InvalidUsage: If it cannot be resolved.
    """
    column = F.col(f"`{text}`") if text in rows.columns else F.expr(text)
    try:
        rows.select(column)
    except Exception as error:  # noqa: BLE001 - an expression may fail in many ways
        names = ", ".join(name for name in rows.columns if name != BATCH)
        if text.isidentifier():
            raise InvalidUsage(f"{what} is {text!r}, and the rows have the columns {names}.") from None
        first = str(error).splitlines()[0]
        raise InvalidUsage(f"{what} {text!r} cannot be computed from the columns {names}: {first}") from None
    return column
