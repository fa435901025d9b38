"""The audit of a query: which rows it has lost, and what the same batches would have lost under Tidegate."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeAlias, TypeVar

from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F

from tidegate_spark.auditing.checkpoint import (
    Judgement,
    Operator,
    QueryCheckpoint,
    read_checkpoint,
    windows_in_state,
)
from tidegate_spark.auditing.losses import AuditedBatch, Losses, highest_of, lost_rows
from tidegate_spark.auditing.policies import (
    UnderPolicy,
    in_spark,
    longest_gaps,
    parsed,
    recorded_batches,
    under_policies,
)
from tidegate_spark.auditing.rows import (
    BATCH,
    ROW_SLOT_MS,
    Group,
    Read,
    SourceRows,
    Window,
    count,
    expression,
    lost_examples,
)
from tidegate_spark.auditing.rule import Difference
from tidegate_spark.auditing.sources import Kind, kind_of, read_delta, read_files, read_kafka
from tidegate_spark.auditing.timeline import Timeline, Watermarks, find_watermarks
from tidegate_spark.config import JobConfig
from tidegate_spark.errors import InvalidUsage

TARGETS = (0.99, 0.999, 0.9999)
"""Shares of rows on time for which the audit recommends lags."""

NO_ARRIVAL = -(2**62)
"""Batch of the rows without a time of arrival."""

Value = TypeVar("Value")
OneOrEach: TypeAlias = Value | Sequence[Value]
"""A value for all sources of the query, or one for each source in the order of its checkpoint."""


@dataclass(frozen=True, slots=True)
class Audit:
    """What an audit has found.

    Attributes:
        checkpoint: The checkpoint; None of an input without a query.
        kinds: Kinds of the sources.
        operator: The operator that drops rows; None if no operator does.
        window: Its windows; None if it judges each row by its own time.
        delays_ms: Delay of each ``withWatermark``.
        shares_watermark: Whether all sources have one ``withWatermark``.
        batches: The batches by their numbers.
        losses: The lost rows.
        policies: The same batches under Tidegate: with the delay of the query as the lag, for each target, and under
            the policies of the user.
        in_spark: The same batches in Spark: as they are, and with a longer delay for each target. Empty if the query
            loses nothing.
        compared: Number of batches whose watermark in the checkpoint was compared with the rows.
        differences: Batches in which they differ.
        restarts: Batches before which the query was started again, as the watermarks show.
        gaps_ms: Longest time without a row by substream (processing time).
        missing: What is no longer there, as sentences.
        groups: The groups of the rows.
        event_time: Event time of the first source, as it was given.
        substream: Substream of the first source, as it was given.
        examples: Lost rows, if they were asked for.
        windows_are_known: Whether the state of the query has these windows.
        dropped: Rows that Spark's progress says it has dropped, and the number of its batches; None without progress.
    """

    checkpoint: QueryCheckpoint | None
    kinds: tuple[Kind, ...]
    operator: Operator | None
    window: Window | None
    delays_ms: tuple[int, ...]
    shares_watermark: bool
    batches: tuple[AuditedBatch, ...]
    losses: Losses
    policies: tuple[UnderPolicy, ...]
    in_spark: tuple[UnderPolicy, ...]
    compared: int
    differences: tuple[Difference, ...]
    restarts: tuple[int, ...]
    gaps_ms: Mapping[str, int]
    missing: tuple[str, ...]
    groups: tuple[Group, ...]
    event_time: str = ""
    substream: str = ""
    examples: tuple[Mapping[str, Any], ...] = ()
    windows_are_known: bool = False
    dropped: tuple[int, int] | None = None

    @property
    def slot_ms(self) -> int:
        """Width of a slot: the size of a window, or a minute."""
        return ROW_SLOT_MS if self.window is None else self.window.size_ms

    @property
    def judged(self) -> Judgement | None:
        """What the query compares with the watermark; None if it drops no rows."""
        return None if self.operator is None else self.operator.judged


def audit(
    spark: SparkSession,
    checkpoint: str,
    *,
    event_time: OneOrEach[str | None],
    substream: OneOrEach[str | None] = None,
    window: timedelta | None = None,
    slide: timedelta | None = None,
    window_start: timedelta = timedelta(0),
    delay: OneOrEach[timedelta | None] = None,
    reader: OneOrEach[DataFrameReader | None] = None,
    read: OneOrEach[Read | None] = None,
    options: OneOrEach[Mapping[str, str] | None] = None,
    table: OneOrEach[str | None] = None,
    operator: int | None = None,
    examples: int = 0,
    progress: Iterable[Mapping[str, Any]] = (),
    targets: Sequence[float] = TARGETS,
    policies: Mapping[str, JobConfig] | None = None,
) -> Audit:
    """Count the rows that a query of Structured Streaming has lost as late, from its checkpoint and its sources.

    It only reads. Each argument of a source is one value for all sources, or a sequence with one for each.

    Args:
        spark: A classic session that reaches the checkpoint and the sources.
        checkpoint: The ``checkpointLocation`` of the query.
        event_time: Event time: a column, or an expression of SQL, as in ``withWatermark``. None for a source without a
            watermark, whose rows are never late.
        substream: What may run behind the others: a column, or an expression of SQL. Default: the partition of Kafka;
            for files, all rows are one substream.
        window: Size of the windows of ``F.window``. Default: that in the state of the query, if Spark can read it.
        slide: Distance of the windows. Default: their size.
        window_start: ``startTime`` of the windows.
        delay: Delay of ``withWatermark``. Default: that in the checkpoint, or as the watermarks show.
        reader: For files: a reader with the format, the schema and the options of the source. Default: the format
            follows from the names of the files.
        read: Function from the rows of the source to rows with an event time, as in the query. It must keep the column
            ``tidegate_batch``, which tells the batches of the rows apart.
        options: The options of the source, such as ``kafka.bootstrap.servers``; for files, unless there is a reader.
        table: For Delta Lake: the path of the table.
        operator: Number of the stateful operator. Default: the first one that drops rows.
        examples: Number of lost rows to return with all their columns. They are read in a second pass.
        progress: Progress of the query's batches, as Spark reports it, to compare with.
        targets: Shares of rows on time for which to recommend lags.
        policies: Job configurations under which to run the batches, too, by the names that the report uses, such as
            ``{"idle after an hour": limiting_lag(…, idle_timeout=…)}``.

    Returns:
        The losses, and the same batches under Tidegate.

    Raises:
        InvalidUsage: If an argument is invalid, or the checkpoint or a source cannot be read.
    """
    found = read_checkpoint(spark, checkpoint)
    number = len(found.batches[-1].ends)
    kinds = tuple(kind_of(found, source) for source in range(number))
    of_operator = _operator(found, operator)
    in_state: set[tuple[int, int]] = set()
    if of_operator is not None and of_operator.judged == "window":
        in_state = windows_in_state(spark, checkpoint, of_operator)
    windows = _window(of_operator, window, slide, window_start, in_state)
    configs = parsed(policies, windows)
    timeline = Timeline.of(found, kinds)
    arguments = {
        "event_time": event_time,
        "substream": substream,
        "delay": delay,
        "reader": reader,
        "read": read,
        "options": options,
        "table": table,
    }
    of_sources = _by_source(arguments, number)
    sources, missing, expected = _rows_of(spark, found, kinds, timeline, of_sources)
    groups = count(sources, timeline.late, windows)
    highest = highest_of(groups)
    if windows is None or windows.slide_ms == windows.size_ms:
        missing += _missing_records(expected, groups)
    delays = {place: source.delay for place, source in enumerate(of_sources) if source.event_time is not None}
    marks = find_watermarks(found, timeline, highest, delays)
    audited = _audit(found, kinds, of_operator, windows, marks, timeline, groups, highest, missing, targets, configs)
    if examples and audited.losses.total.most:
        late = {batch.number: batch.late[1] for batch in audited.batches}
        audited = replace(audited, examples=tuple(lost_examples(sources, late, windows, examples)))
    first = of_sources[0]
    return replace(
        audited,
        event_time=first.event_time or "",
        substream=first.substream or "",
        windows_are_known=bool(in_state),
        dropped=_dropped(progress, audited),
    )


def audit_input(
    rows: DataFrame,
    *,
    event_time: str,
    arrival: str,
    every: timedelta,
    delay: timedelta,
    substream: str | None = None,
    window: timedelta | None = None,
    slide: timedelta | None = None,
    window_start: timedelta = timedelta(0),
    targets: Sequence[float] = TARGETS,
    policies: Mapping[str, JobConfig] | None = None,
) -> Audit:
    """Count the rows that a query would lose as late, if it read an input in batches as it arrives.

    There is no checkpoint to compare with, and no batch without rows. If the query exists, use :func:`audit`. For one
    stream without substreams, ``tidegate simulate`` needs no Spark.

    Args:
        rows: The rows.
        event_time: Event time: a column, or an expression of SQL.
        arrival: Time of arrival: a column, or an expression of SQL. Kafka has the column ``timestamp``.
        every: Time from one batch to the next.
        delay: Delay of ``withWatermark``.
        substream: As in :func:`audit`.
        window: Size of the windows; None if the query judges each row by its own time.
        slide: As in :func:`audit`.
        window_start: As in :func:`audit`.
        targets: As in :func:`audit`.
        policies: As in :func:`audit`.

    Raises:
        InvalidUsage: If an argument is invalid, or there are no rows.
    """
    every_ms = round(every / timedelta(milliseconds=1))
    if every_ms <= 0:
        raise InvalidUsage(f"every is {every}: pass the time from one batch to the next, such as timedelta(minutes=1).")
    judged: Judgement = "row" if window is None else "window"
    operator = Operator(0, "the planned query", judged, ())
    windows = _window(operator, window, slide, window_start)
    configs = parsed(policies, windows)
    arrived = expression(rows, "arrival", arrival).cast("timestamp")
    numbered = rows.withColumn(BATCH, F.coalesce(F.floor(F.unix_millis(arrived) / every_ms), F.lit(NO_ARRIVAL)))
    counted = count([SourceRows(0, numbered, event_time, substream or "''")], {}, windows)
    missing = []
    if without_arrival := sum(group.rows for group in counted if group.batch == NO_ARRIVAL):
        missing.append(f"{without_arrival:,} more rows have no time of arrival, and are in none of these figures.")
    counted = [group for group in counted if group.batch != NO_ARRIVAL]
    places = {batch: place for place, batch in enumerate(sorted({group.batch for group in counted}))}
    if not places:
        raise InvalidUsage("The input has no rows with a time of arrival: nothing would be lost.")
    groups = [replace(group, batch=places[group.batch]) for group in counted]
    arrivals = {place: (batch + 1) * every_ms for batch, place in places.items()}
    timeline = Timeline(len(places), 0, (), {}, {}, None, {}, arrivals)
    marks = Watermarks({0: round(delay / timedelta(milliseconds=1))}, False, "min", 0, (), ())
    highest = highest_of(groups)
    found = _audit(None, ("files",), operator, windows, marks, timeline, groups, highest, missing, targets, configs)
    return replace(found, event_time=event_time, substream=substream or "")


def _audit(
    checkpoint: QueryCheckpoint | None,
    kinds: tuple[Kind, ...],
    operator: Operator | None,
    windows: Window | None,
    marks: Watermarks,
    timeline: Timeline,
    groups: Sequence[Group],
    highest: Mapping[int, Mapping[int, int]],
    missing: Sequence[str],
    targets: Sequence[float],
    configs: Mapping[str, Any],
) -> Audit:
    batches = timeline.audited(marks, highest)
    slot_ms = ROW_SLOT_MS if windows is None else windows.size_ms
    judged = None if operator is None else operator.judged
    has_times = checkpoint is None  # before the log of offsets, only changes of files are known
    names: dict[int, set[str]] = defaultdict(set)
    for group in groups:
        names[group.batch].add(group.substream)
    losses, delay_ms = lost_rows(groups, batches, judged, slot_ms), max(marks.delays_ms.values())
    recorded = recorded_batches(groups, batches, judged, slot_ms)
    of_spark: tuple[UnderPolicy, ...] = ()
    if judged is not None and losses.total.most:
        now, *longer = in_spark(recorded, batches, judged, delay_ms, targets)
        of_spark = (replace(now, lost=losses.total.most), *longer)  # known by the row, not only by the minute
    return Audit(
        checkpoint,
        kinds,
        operator,
        windows,
        tuple(marks.delays_ms.values()),
        marks.is_shared,
        batches,
        losses,
        tuple(under_policies(recorded, judged, delay_ms, targets, configs)),
        of_spark,
        marks.compared,
        tuple(marks.differences),
        tuple(marks.restarts),
        longest_gaps([(batch.planned_ms, names[batch.number]) for batch in batches if has_times or batch.is_logged]),
        tuple(missing),
        tuple(groups),
    )


@dataclass(frozen=True, slots=True)
class _Source:
    """The arguments of one source, as in :func:`audit`."""

    event_time: str | None
    substream: str | None
    delay: timedelta | None
    reader: DataFrameReader | None
    read: Read | None
    options: Mapping[str, str] | None
    table: str | None


def _by_source(arguments: Mapping[str, Any], number: int) -> list[_Source]:
    """Return the arguments of each source."""
    each: dict[str, list[Any]] = {}
    for name, value in arguments.items():
        is_for_all = isinstance(value, str) or not isinstance(value, Sequence)
        each[name] = [value] * number if is_for_all else list(value)
        if len(each[name]) != number:
            raise InvalidUsage(
                f"{name} has {len(value)} values, and the query has {number} sources: pass one for each."
            )
    return [_Source(**{name: values[place] for name, values in each.items()}) for place in range(number)]


def _operator(checkpoint: QueryCheckpoint, number: int | None) -> Operator | None:
    """Return the operator whose lost rows are counted; None if no operator drops rows."""
    if number is None:
        return next((each for each in checkpoint.operators if each.judged is not None), None)
    chosen = next((each for each in checkpoint.operators if each.number == number), None)
    if chosen is None:
        known = ", ".join(f"{each.number} ({each.name})" for each in checkpoint.operators) or "none"
        raise InvalidUsage(f"The query has no stateful operator {number}; it has: {known}.")
    return chosen


def _window(
    operator: Operator | None,
    size: timedelta | None,
    slide: timedelta | None,
    start: timedelta,
    in_state: Collection[tuple[int, int]] = (),
) -> Window | None:
    """Return the windows of a query, which must be those in its state.

    Args:
        operator: The operator that drops rows.
        size: Size of the windows; None: that in the state.
        slide: Distance of the windows; None: their size.
        start: ``startTime`` of the windows.
        in_state: Sizes and starts of windows in the state, if it can be read.

    Raises:
        InvalidUsage: If an argument is missing or invalid, or the state has other windows.
    """
    if operator is None or operator.judged != "window":
        return None
    sizes, offsets = {size_ms for size_ms, _ in in_state}, {offset for _, offset in in_state}
    if size is None and len(sizes) == 1 and slide is None and len(offsets) == 1 and not start:
        return Window(*sizes, *sizes, *offsets)
    if size is None:
        seen = "" if not in_state else f" Its state has windows of {_texts(sizes)} that start at {_texts(offsets)}."
        raise InvalidUsage(
            f"The query aggregates by window ({operator.name}), and the checkpoint does not have the size and the "
            f"slide: pass them as in F.window, with --window 1h or window=timedelta(hours=1).{seen}"
        )
    size_ms, slide_ms, start_ms = (round(each / timedelta(milliseconds=1)) for each in (size, slide or size, start))
    if not 0 < slide_ms <= size_ms:
        raise InvalidUsage(f"window is {size}, and slide {slide}: slide must be more than 0 and at most the window.")
    if any(of_state != size_ms or (offset - start_ms) % slide_ms for of_state, offset in in_state):
        raise InvalidUsage(
            f"window is {size}, and the state of the query has windows of {_texts(sizes)} that start at "
            f"{_texts(offsets)}: pass the size, the slide and the start as in F.window."
        )
    return Window(size_ms, slide_ms, start_ms)


def _texts(durations_ms: Iterable[int]) -> str:
    return ", ".join(str(timedelta(milliseconds=each)) for each in sorted(durations_ms)[:3])


def _rows_of(
    spark: SparkSession,
    checkpoint: QueryCheckpoint,
    kinds: Sequence[Kind],
    timeline: Timeline,
    of_sources: Sequence[_Source],
) -> tuple[list[SourceRows], list[str], dict[int, int]]:
    """Return the rows of the sources, what is missing, and the number of records of each source that has offsets."""
    expected: dict[int, int] = {}
    sources: list[SourceRows] = []
    missing: list[str] = []
    for number, (kind, source) in enumerate(zip(kinds, of_sources, strict=True)):
        if source.event_time is None:
            continue
        if kind == "files":
            options, first = source.options or {}, timeline.earlier
            there = read_files(spark, source.reader, timeline.files[number], options, first)
        elif kind == "kafka":
            there = read_kafka(spark, source.options or {}, timeline.parts[number])
        else:
            there = read_delta(spark, source.table, timeline.parts[number])
        missing += there.missing
        for part in there.parts:
            rows = part.rows if source.read is None else source.read(part.rows)
            has_partition = kind == "kafka" and {"topic", "partition"} <= set(rows.columns)
            default = "concat_ws('/', topic, partition)" if has_partition else "''"
            substream = source.substream or default
            sources.append(SourceRows(number, rows, source.event_time, substream, part.batches, part.is_logged))
        if there.parts and source.read is None and kind == "kafka":
            expected[number] = there.expected
    if not sources:
        gone = " ".join(missing) or "The batches in its log have read nothing."
        raise InvalidUsage(f"Nothing is left to audit of {checkpoint.path}. {gone}")
    return sources, missing, expected


def _missing_records(expected: Mapping[int, int], groups: Sequence[Group]) -> list[str]:
    """Return a sentence for each source that has fewer records than its offsets."""
    said = []
    for number, records in expected.items():
        gone = records - sum(group.rows for group in groups if group.source == number)
        if gone:
            said.append(
                f"{gone:,} of {records:,} records of source {number} are not there: Kafka has removed them since, "
                "or their offsets belong to transactions."
            )
    return said


def _dropped(progress: Iterable[Mapping[str, Any]], found: Audit) -> tuple[int, int] | None:
    """Return the rows that Spark says it has dropped in the audited batches, and the number of batches that say so."""
    ids = {batch.batch_id for batch in found.batches if batch.is_logged}
    by_batch: dict[int, int] = {}
    for batch in progress:
        operators = batch.get("stateOperators") or ()
        if batch.get("batchId") in ids and operators:
            by_batch[batch["batchId"]] = sum(int(each["numRowsDroppedByWatermark"]) for each in operators)
    return (sum(by_batch.values()), len(by_batch)) if by_batch else None
