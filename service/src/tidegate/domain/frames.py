"""The records of a job's frames: which frames are complete, what was left out, and what changed since.

A frame is *read* when W has passed its end, and *finished* when the written watermark has. The step that moves W past
frames makes their record, with the substreams, queries and batches that did not count then: the *exclusions*. Frames
that W passes together have one record. The step that moves the written watermark past frames finishes them.

Rows that change a finished frame are collected for ``correction_delay_ms``. They then make a new *generation* of the
frame. The counts of a frame are the sum over its generations.

A frame without rows is empty only if its record has no exclusions. With exclusions, it stays open until nothing is
excluded below its end any more. Removed substreams and lost offsets are exclusions for ever.

A frame that may have rows that no client has counted is never empty. A query that tells its output writes the results
that a batch has changed after the commit. Their frames wait for this.

Each generation keeps the versions of the tables that queries write, as of the step that has made it.

This is the model. In a coordinator, ``store/lua/frames.lua`` does the same.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from itertools import pairwise
from typing import Any, Literal, Self

from tidegate.domain.calendar import Frames
from tidegate.domain.completeness import HourCounts, LateDisposition, RowsOfHour
from tidegate.domain.history import NAMES_KEPT, Kind
from tidegate.domain.job import (
    Completion,
    ExcludedSubstream,
    Exclusion,
    FrameGeneration,
    FrameLog,
    FrameOutput,
    FrameRecord,
    JobState,
    QueryBatch,
    Substream,
)
from tidegate.domain.limits import arrival_bound, passed_by_limits
from tidegate.domain.values import DIRECT, SubstreamKey, above, by_value, described, highest, member

FRAME_RECORDS_KEPT = 10_000
"""Maximum number of records of frames."""
FRAME_RECORDS_KEPT_MS = 400 * 24 * 3_600_000
"""Time for which a record stays after W has passed its frames."""
FRAMES_COUNTED = 100_000
"""Maximum number of frames whose rows are counted. The first records are forgotten, with their counts. Rows of twice as
many open frames are not counted."""
GENERATIONS_KEPT = 100
"""Maximum number of generations of a frame that are kept apart. Earlier ones are added up."""
FINISHED_AT_ONCE = 200
"""Maximum number of records, and of generations, that a command completes. The sweeps after it complete the others."""
DELAYS_MS = tuple(round(1000 * s) for s in (1, 5, 15, 60, 300, 900, 1800, 3600, 7200, 21_600, 43_200, 86_400, 604_800))
"""Upper bounds of the delays by which finished frames are counted."""
MOST_MEASURED = 100
"""Maximum number of frames of a record whose delays are counted. A larger record is of a backfill."""
LOSSES_KEPT = 100
"""Maximum number of losses that a job keeps."""
WRITING_KEPT = 1000
"""Maximum number of frames of a batch that wait until their results are written."""
CONFIRMED_MS = 60_000
"""Time without evidence of a query after which its idle substreams may have data, unless the idle timeout is longer."""
RESTORED = 1000
"""Distance of the generations after a restored watermark: the store may have lost later generations."""

COMPLETIONS_KEPT = 2000
"""Number of frames, the latest ones, whose completions are kept.

Frames that ended before the job finished its first one are not kept: they are of a backfill, so that their delay says
nothing about later ones.
"""

FrameState = Literal["open", "complete", "complete_with_exclusions", "empty"]
Basis = Literal["hour_of_day", "all_frames", "pace"]

NO_ROWS_OF_FRAME = HourCounts()


# The declaration


def changes_frames(before: Frames | None, after: Frames | None) -> bool:
    """Return whether a job starts new frames, because their declaration has changed."""
    return (before and before.identity) != (after and after.identity)


def flush_frames(job: JobState, after: Frames | None) -> None:
    """Make the generations of all changes, if the declaration is about to change."""
    if job.config.frames is not None and changes_frames(job.config.frames, after):
        _make_generations(job, job.config.frames, job.frames, sorted(job.frames.changes, key=_by_text))


def declare_frames(job: JobState, before: Frames | None) -> None:
    """Start new frames for a job whose declaration of frames has changed.

    Args:
        job: The job, with its new configuration.
        before: The declaration before; None if the job had no frames.
    """
    frames, log = job.config.frames, job.frames
    if not changes_frames(before, frames):
        return
    base = max(log.base, log.latest_generation)
    log = job.frames = FrameLog(base=base, reason="config" if base else "", latest_generation=base)
    log.revision = job.revision
    if frames is None:
        return
    log.uncounted_up_to = _latest(job)
    if job.watermark is not None:
        written = job.watermark if job.written_watermark is None else job.written_watermark
        log.unread = log.unfinished = frames.number_of(min(job.watermark, written))
    if before is not None or job.watermark is not None:
        declared = {"every": str(frames.every), "offset_ms": frames.offset_ms, "time_zone": frames.time_zone}
        job.history.write(job.now_ms, Kind.FRAMES, **declared)


def reset_frames(job: JobState) -> None:
    """Forget the frames of the previous incarnation. The generations of the next records are higher.

    Call it before the maxima of the job are forgotten: the queries may not read the rows before them again.
    """
    latest, up_to = job.frames.latest_generation, _latest(job)
    job.frames = FrameLog(base=latest, reason="reset" if latest else "", latest_generation=latest)
    job.frames.revision = job.revision
    if job.config.frames is not None:
        job.frames.uncounted_up_to = up_to


def _latest(job: JobState) -> int | None:
    return highest(job.max_event_time, job.max_watermark)


# Rows


def count_rows(
    job: JobState, query: str, rows: Iterable[RowsOfHour], disposition: LateDisposition, latest: int | None
) -> None:
    """Add the rows of a batch to their frames.

    Args:
        job: The job.
        query: The query of the batch.
        rows: For each frame, a time in the frame, and its number of rows, updated rows and late rows.
        disposition: Disposition of the late rows.
        latest: Latest accepted event time; None: any.
    """
    frames, log = job.config.frames, job.frames
    if frames is None:
        return
    writing: list[int] = []
    output = job.queries[query].output_watermark
    for time, count, updated, late in rows:
        if not count or (latest is not None and time > latest):
            continue
        number = frames.number_of(time)
        start = frames.start_of(number)
        is_finished = log.unfinished is not None and number < log.unfinished
        if is_finished and record_of(log, start) is None:
            continue  # before the first record kept
        if start not in log.rows and len(log.rows) >= 2 * FRAMES_COUNTED:
            log.uncounted_up_to = highest(log.uncounted_up_to, start)
            continue
        dropped, diverted = (late, 0) if disposition == "dropped" else (0, late)
        added = HourCounts(count, updated, dropped, diverted)
        log.rows[start] = log.rows.get(start, NO_ROWS_OF_FRAME) + added
        if is_finished:
            due_ms, before = log.changes.get(
                start, (job.moment.observed_ms + frames.correction_delay_ms, NO_ROWS_OF_FRAME)
            )
            log.changes[start] = due_ms, before + added
        # Frames that end above the output watermark of the query wait for that.
        is_passed = is_finished or above(output, frames.start_of(number + 1) - 1)
        if log.unread is not None and number < log.unread and is_passed and start not in writing:
            writing.append(start)
    if writing and job.queries[query].tells_output:
        log.writing[query] = sorted(writing)[:WRITING_KEPT]


def miss_rows(job: JobState, up_to: int | None = None) -> None:
    """Record that rows up to the max event time may be committed that no client has counted.

    ``up_to`` is another event time of such rows.
    """
    if job.config.frames is not None:
        job.frames.uncounted_up_to = highest(job.frames.uncounted_up_to, _latest(job), up_to)


def wrote_results(job: JobState, query: str) -> None:
    """Record that a query has written the results of its latest batch, or never will."""
    job.frames.writing.pop(query, None)


def _unwritten(log: FrameLog) -> set[int]:
    """Return the starts of the frames whose results queries have not written."""
    return {start for starts in log.writing.values() for start in starts}


# Exclusions


def exclusion(reason: str, substreams: Iterable[tuple[str, int | None]], **others: Any) -> Exclusion | None:
    """Return an exclusion of substreams, given with their watermarks; None without substreams."""
    found = list(substreams)
    if not found:
        return None
    named = _named_first(found)
    return Exclusion(reason, len(found), named[0].watermark, named, **others)


def _named_first(substreams: list[tuple[str, int | None]]) -> tuple[ExcludedSubstream, ...]:
    ordered = sorted(substreams, key=lambda each: (by_value(each[1]), each[0].encode()))
    return tuple(ExcludedSubstream(*each) for each in ordered[:NAMES_KEPT])


def lose(job: JobState, found: Exclusion | None) -> None:
    """Record an exclusion that concerns all frames up to the max event time that are not finished, or not proven."""
    if found is None or job.config.frames is None or (up_to := _latest(job)) is None:
        return
    losses = [*job.frames.losses, replace(found, up_to=up_to)]
    if len(losses) > LOSSES_KEPT:
        _merge_two(losses)
    job.frames.losses = losses


def _merge_two(losses: list[Exclusion]) -> None:
    """Merge the first loss that has the reason of a later one with that one."""
    reasons = [each.reason for each in losses]
    at, other = next(
        (at, reasons.index(reason, at + 1)) for at, reason in enumerate(reasons) if reason in reasons[at + 1 :]
    )
    a, b = losses[at], losses.pop(other)
    substreams = [(each.substream, each.watermark) for each in (*a.substreams, *b.substreams)]
    named = () if not substreams else _named_first(substreams)
    query, batch_id = (a.query, b.batch_id) if a.query == b.query else (None, None)
    losses[at] = Exclusion(
        a.reason,
        a.count + b.count,
        min(a.watermark, b.watermark, key=by_value),
        named,
        query,
        batch_id,
        (a.partitions + b.partitions)[:NAMES_KEPT],
        highest(a.up_to, b.up_to),
    )


def lose_substreams(job: JobState, reason: str, removed: Mapping[SubstreamKey, Substream]) -> None:
    """Record that substreams were removed before they were done."""
    remaining = ((member(key), substream.watermark) for key, substream in removed.items() if not substream.done)
    lose(job, exclusion(reason, remaining))


def confirm_silence(job: JobState, name: str, until_ms: int, caught_up: Collection[str] | None = None) -> None:
    """Record that a query has read all input of its idle substreams up to a processing time.

    Args:
        job: The job.
        name: The query.
        until_ms: The processing time.
        caught_up: The only substreams whose input it has read. It confirms nothing if others are idle. None: all.
    """
    if job.config.frames is None:
        return
    if caught_up is not None:
        idle = {of for (query, of), each in job.substreams.items() if query == name and each.idle and not each.done}
        if not idle <= set(caught_up):
            return
    query = job.queries[name]
    query.confirmed_ms = job.moment.observed_ms
    query.confirmed_until_ms = highest(query.confirmed_until_ms, until_ms)


def exclusions(job: JobState, end: int, read_ms: int | None = None) -> Iterator[Exclusion]:
    """Yield what does not count, or has not reached the end of frames that W has passed, without losses.

    Args:
        job: The job.
        end: End of the frames.
        read_ms: Processing time at which W has passed the frames. Only later evidence then confirms that idle
            substreams have no data. None: W passes them now.
    """
    yield from filter(None, _substreams_below(job, end, read_ms))
    for name, query in sorted(job.queries.items(), key=lambda item: item[0].encode()):
        if query.open and query.released and not above(query.pinned_watermark, end - 1):
            yield Exclusion("max_batch_hold_ms", 1, query.pinned_watermark, (), name, query.latest)


def _substreams_below(job: JobState, end: int, read_ms: int | None) -> Iterator[Exclusion | None]:
    # The end of the input ends all substreams that count. Rows that seldom arrive are no exclusion.
    if not job.is_complete and above(end, arrival_bound(job)):
        behind = "behind" if job.config.max_retention_ms is None else "max_retention_ms"
        for reason, reached in passed_by_limits(job, behind).items():
            yield exclusion(reason, _below(end, ((name, watermark) for watermark, name in reached)))
    idle = [(key, s) for key, s in job.substreams.items() if s.idle and not s.done]
    for reason in ("query_timeout_ms", "idle", "idle_timeout_ms", "silent_query"):
        of_reason = ((member(key), s.watermark) for key, s in idle if _reason(job, key, s, read_ms) == reason)
        yield exclusion(reason, _below(end, of_reason))


def _reason(job: JobState, key: SubstreamKey, substream: Substream, read_ms: int | None = None) -> str:
    """Return why an idle substream does not count; "" if its query has confirmed that it has no data."""
    if substream.idle_by_operator:
        return "idle"
    if substream.forced_idle:
        return "query_timeout_ms"
    if job.is_complete:  # the end of the input confirms it
        return ""
    if key[0] == DIRECT:
        return "idle_timeout_ms"
    query = job.queries[key[0]]
    if query.confirmed_ms is None or query.confirmed_until_ms is None:
        return "silent_query"
    if read_ms is not None:
        return "" if query.confirmed_until_ms >= read_ms else "silent_query"
    patience_ms = max(job.config.idle_timeout_ms or 0, CONFIRMED_MS)
    return "" if job.moment.observed_ms - query.confirmed_ms <= patience_ms else "silent_query"


def silent_substreams(job: JobState, end: int) -> Exclusion | None:
    """Return the idle substreams below the end of frames whose query has confirmed that they have no data."""
    idle = [(key, s) for key, s in job.substreams.items() if s.idle and not s.done]
    return exclusion("silent", _below(end, ((member(key), s.watermark) for key, s in idle if not _reason(job, key, s))))


def _below(end: int, substreams: Iterable[tuple[str, int | None]]) -> list[tuple[str, int | None]]:
    return [each for each in substreams if not above(each[1], end - 1)]


# The step after each command


def advance_frames(job: JobState) -> None:
    """Make the records of the frames that W has passed, and complete the records and generations that are due."""
    frames, log = job.config.frames, job.frames
    if frames is None:
        return
    log.has_more = False
    if job.was_restored:  # the store may have lost rows, and generations
        miss_rows(job, job.watermark)
        log.base = log.latest_generation = max(log.base, log.latest_generation) + RESTORED
        log.reason = "watermark_restored"
    if job.watermark is not None:
        _read(job, frames, log, job.watermark)
    if job.written_watermark is not None and log.unfinished is not None:
        _finish(job, frames, log, job.written_watermark)
    _prove(job, frames, log)
    _correct(job, frames, log)


def _read(job: JobState, frames: Frames, log: FrameLog, watermark: int) -> None:
    reached = frames.number_of(watermark)
    if log.unread is None:
        lowest = min(log.rows, default=None)
        first = reached if lowest is None else min(reached, frames.number_of(lowest))
        log.unread = log.unfinished = first
    if not log.has_begun:
        begins = _first_number(frames, log, reached)
        assert begins is not None
        log.unread = log.unfinished = min(begins, reached)
    if reached <= log.unread:
        return
    log.has_begun = True
    start, end = frames.start_of(log.unread), frames.start_of(reached)
    found = [*exclusions(job, end), *(loss for loss in log.losses if loss.concerns(start, end))]
    silent = silent_substreams(job, end)
    queries = tuple(QueryBatch(name, committed_batch(job, name)) for name in sorted(job.queries, key=str.encode))
    for first, last in pairwise(_parts(frames, log.unread, reached, found)):
        part = frames.start_of(first), frames.start_of(last)
        concerning = tuple(each for each in found if each.concerns(*part))
        log.records[part[0]] = FrameRecord(
            *part,
            watermark,
            job.now_ms,
            log.base + 1,
            log.reason,
            concerning,
            silent,
            queries[:NAMES_KEPT],
            log.uncounted_up_to,
        )
    log.latest_generation = max(log.latest_generation, log.base + 1)
    log.unread = reached
    _trim(frames, log, job.now_ms - FRAME_RECORDS_KEPT_MS)


def _parts(frames: Frames, first: int, last: int, found: Iterable[Exclusion]) -> list[int]:
    """Return the numbers at which ranges of frames begin that the same exclusions concern, and the last number."""
    cuts = {first, last}
    for each in found:
        if each.watermark is not None:
            cuts.add(frames.number_of(each.watermark))
        if each.up_to is not None:
            cuts.add(frames.number_of(each.up_to) + 1)
    return sorted(cut for cut in cuts if first <= cut <= last)


def committed_batch(job: JobState, name: str) -> int | None:
    """Return the latest committed batch of a query; None if it has committed no batch."""
    query = job.queries[name]
    return query.previous if query.open else query.latest


def table_versions(job: JobState) -> tuple[FrameOutput, ...]:
    """Return the versions of the first 20 tables, sorted by query and table."""
    found = [
        FrameOutput(name, table, version)
        for name, query in job.queries.items()
        for table, version in query.outputs.items()
    ]
    return tuple(sorted(found, key=lambda each: (each.query.encode(), each.table.encode()))[:NAMES_KEPT])


def unfinished_frame(job: JobState) -> int | None:
    """Return the start of the first frame that is not finished; None if the job has no frame yet."""
    frames = job.config.frames
    first = None if frames is None else _first_unfinished(frames, job.frames)
    return None if frames is None or first is None else frames.start_of(first)


def _first_unfinished(frames: Frames, log: FrameLog) -> int | None:
    return log.unfinished if log.has_begun else _first_number(frames, log)


def _first_number(frames: Frames, log: FrameLog, default: int | None = None) -> int | None:
    """Return the number of the first frame that W has not passed; None if the job has no frame.

    If the job has no record yet, its first frame is the first one with rows: no row comes before it any more. Without
    rows, it is ``default``.
    """
    if log.has_begun or (log.uncounted_up_to is not None and log.unread is not None):
        return log.unread
    first = min(map(frames.number_of, log.rows), default=log.unread if default is None else default)
    return first if log.unread is None or first is None else max(log.unread, first)


def _finish(job: JobState, frames: Frames, log: FrameLog, written: int) -> None:
    assert log.unread is not None and log.unfinished is not None
    reached = min(frames.number_of(written), log.unread)
    waiting = [number for start in _unwritten(log) if (number := frames.number_of(start)) >= log.unfinished]
    reached = min([reached, *waiting])
    outputs = table_versions(job)
    for _ in range(FINISHED_AT_ONCE):
        if reached <= log.unfinished:
            return
        record = record_of(log, frames.start_of(log.unfinished))
        assert record is not None
        end = min(record.end, frames.start_of(reached))
        finished = replace(
            record, end=end, finished_ms=job.now_ms, uncounted_up_to=log.uncounted_up_to, outputs=outputs
        )
        if record.generation <= log.base:  # the watermark was restored: an event about the frame may exist
            finished = replace(finished, generation=log.base + 1, reason=log.reason)
            log.latest_generation = max(log.latest_generation, finished.generation)
        log.records[record.start] = finished
        if end < record.end:
            log.records[end] = replace(record, start=end)
        log.unfinished = frames.number_of(end)
        _tell_finished(job, frames, log, finished)
    log.has_more = reached > log.unfinished


def _tell_finished(job: JobState, frames: Frames, log: FrameLog, record: FrameRecord) -> None:
    """Write the record of the history about finished frames, and count them."""
    first, last = frames.number_of(record.start), frames.number_of(record.end)
    without = _number_without_rows(frames, log, record, first, last)
    with_rows = last - first - without
    for number in range(first, last if last - first <= MOST_MEASURED else first):
        delay_ms = max(job.now_ms - frames.start_of(number + 1), 0)
        log.delays[bisect_left(DELAYS_MS, delay_ms)] += 1
        log.delay_sum_ms += delay_ms
    if log.began_ms is None:
        log.began_ms = job.now_ms
    live = max(first, frames.number_of(log.began_ms), last - COMPLETIONS_KEPT)
    log.completions += [Completion(frames.start_of(number + 1), job.now_ms) for number in range(live, last)]
    del log.completions[:-COMPLETIONS_KEPT]
    if record.exclusions:
        _tell(job, record, "complete_with_exclusions", with_rows)
        if without and not _is_lost(log, record):
            log.unproven = sorted([*log.unproven, record.start])
    else:
        _tell(job, record, "complete" if with_rows else "empty", last - first, without)
    log.totals["complete_with_exclusions" if record.exclusions else "complete"] += with_rows
    log.totals["empty"] += 0 if record.exclusions else without


def _tell(job: JobState, record: FrameRecord, state: FrameState, count: int, empty: int = 0) -> None:
    if count:
        bounds = {"start": record.start, "end": record.end, "count": count, "empty": empty or None}
        details = {"generation": record.generation, "state": state, "reason": record.reason}
        job.history.write(job.now_ms, Kind.FRAME, **bounds, **details)


def _number_without_rows(frames: Frames, log: FrameLog, record: FrameRecord, first: int, last: int) -> int:
    """Return how many frames of a record, of those from a number to another, have no row.

    Frames that may have uncounted rows do not count.
    """
    if record.uncounted_up_to is not None:
        first = min(max(first, frames.number_of(record.uncounted_up_to) + 1), last)
    start, end = frames.start_of(first), frames.start_of(last)
    return last - first - sum(start <= each < end for each in log.rows)


def _is_lost(log: FrameLog, record: FrameRecord) -> bool:
    """Return whether removed substreams, or lost offsets, may have had rows of the frames of a record."""
    lost = any(loss.concerns(record.start, record.end) for loss in log.losses)
    return lost or any(each.up_to is not None for each in record.exclusions)


def _prove(job: JobState, frames: Frames, log: FrameLog) -> None:
    """Prove that frames without rows are empty, now that each excluded substream has reached their end.

    Those that may have rows that no client has counted become complete with exclusions.
    """
    for _ in range(FINISHED_AT_ONCE):
        if not log.unproven:
            return
        record = log.records.get(log.unproven[0])
        if record is not None and not _is_lost(log, record):
            if next(exclusions(job, record.end, record.read_ms), None) is not None:
                return
            first, last = frames.number_of(record.start), frames.number_of(record.end)
            before = _number_without_rows(frames, log, record, first, last)
            proven = replace(record, proven_ms=job.now_ms, uncounted_up_to=log.uncounted_up_to)
            log.records[record.start] = proven
            empty = _number_without_rows(frames, log, proven, first, last)
            _tell(job, record, "complete_with_exclusions", before - empty)
            _tell(job, record, "empty", empty, empty)
            log.totals["complete_with_exclusions"] += before - empty
            log.totals["empty"] += empty
        log.unproven = log.unproven[1:]
    log.has_more = True


def _correct(job: JobState, frames: Frames, log: FrameLog) -> None:
    """Make the new generations that are due."""
    now = job.moment.observed_ms
    due = [start for start, (due_ms, _) in log.changes.items() if due_ms <= now or job.is_complete]
    due = sorted(due, key=lambda start: (log.changes[start][0], _by_text(start)))
    waiting = _unwritten(log)
    made = [start for start in due if start not in waiting][:FINISHED_AT_ONCE]
    _make_generations(job, frames, log, made)
    log.has_more = log.has_more or len(made) == FINISHED_AT_ONCE


def _by_text(start: int) -> bytes:
    return str(start).encode()


def _make_generations(job: JobState, frames: Frames, log: FrameLog, starts: Iterable[int]) -> None:
    for start in starts:
        _, added = log.changes.pop(start)
        record = record_of(log, start)
        if record is None:
            continue
        of_frame = log.generations.setdefault(start, [])
        generation = max(of_frame[-1].generation if of_frame else record.generation, log.base) + 1
        of_frame.append(FrameGeneration(generation, job.now_ms, "rows", added, table_versions(job)))
        if len(of_frame) > GENERATIONS_KEPT:
            first, second = of_frame[:2]
            of_frame[:2] = [replace(second, added=first.added + second.added)]
        log.latest_generation = max(log.latest_generation, generation)
        log.totals["corrected"] += 1
        end = frames.start_of(frames.number_of(start) + 1)
        bounds = {"start": start, "end": end, "count": 1}
        details = {"generation": generation, "state": frame_state(log, record, start, end), "reason": "rows"}
        job.history.write(job.now_ms, Kind.FRAME, **bounds, **details, **asdict(FrameRows.of(added)))


def _trim(frames: Frames, log: FrameLog, oldest_ms: int) -> None:
    """Forget the first records while the job has too many records or counts, or old ones; keep unfinished ones."""
    assert log.unfinished is not None
    starts = sorted(log.records)
    unfinished, counted = frames.start_of(log.unfinished), len(log.rows)
    for at, start in enumerate(starts[:FINISHED_AT_ONCE]):
        record, left = log.records[start], len(starts) - at
        is_old = left > FRAME_RECORDS_KEPT or counted > FRAMES_COUNTED or record.read_ms < oldest_ms
        if not is_old or start >= unfinished:
            break
        del log.records[start]
        counted -= sum(start <= each < record.end for each in log.rows)
    first = min(log.records, default=unfinished)
    for table in (log.rows, log.changes, log.generations):
        for start in [start for start in table if start < first]:
            del table[start]


# The state of a frame


def record_of(log: FrameLog, start: int) -> FrameRecord | None:
    """Return the record of the frame that starts at a time; None if the job has no such record."""
    first = max((each for each in log.records if each <= start), default=None)
    record = None if first is None else log.records[first]
    return record if record is not None and start < record.end else None


def frame_state(log: FrameLog, record: FrameRecord | None, start: int, end: int) -> FrameState:
    """Return the state of a frame."""
    if record is None or record.finished_ms is None:
        return "open"
    is_excluded = any(each.concerns(start, end) for each in record.exclusions)
    is_uncounted = record.uncounted_up_to is not None and start <= record.uncounted_up_to
    if is_uncounted or start in log.rows:
        return "complete_with_exclusions" if is_excluded else "complete"
    return "open" if is_excluded and record.proven_ms is None else "empty"


def next_generation_ms(job: JobState) -> int | None:
    """Return the observed time at which the next generation is due; None if none is due by time.

    Frames whose results a query has not written are not due by time.
    """
    log = job.frames
    waiting = _unwritten(log)
    return min((due_ms for start, (due_ms, _) in log.changes.items() if start not in waiting), default=None)


# What a read returns


@dataclass(frozen=True, slots=True)
class FrameBounds:
    """The bounds of a frame."""

    start: int = described("Event time at which the frame starts.", example=1357552800000)
    end: int = described("Event time at which the frame ends.", example=1357556400000)


@dataclass(frozen=True, slots=True)
class FrameRows:
    """Numbers of rows of a frame."""

    on_time: int = described("Rows that were on time.", example=812)
    updated: int = described("Rows that changed a written result.", example=3)
    dropped: int = described("Late rows that were dropped.", example=0)
    diverted: int = described("Late rows that were written to a side output.", example=2)

    @classmethod
    def of(cls, counts: HourCounts) -> Self:
        """Return the numbers of rows in counts."""
        return cls(counts.rows - counts.updated - counts.late, counts.updated, counts.dropped, counts.diverted)


@dataclass(frozen=True, slots=True)
class Generation:
    """A generation of a frame, and the rows that it adds. The first has all rows until the frame was finished."""

    generation: int = described("Number of the generation.", example=2)
    at_ms: int = described("Processing time at which the generation was made.", example=1357560000000)
    reason: str = described(
        "Why the generation was made: empty for the first, `rows` for later rows; `reset`, `config` or "
        "`watermark_restored` if the first generation of the frame is not 1.",
        example="rows",
    )
    rows: FrameRows = described("Rows that the generation adds.")
    outputs: list[FrameOutput] = described(
        "The first 20 tables with their versions when the generation was made, as the queries have told them, sorted "
        "by query and table. Of a frame that was proven empty later: when the written watermark passed its end."
    )


@dataclass(frozen=True, slots=True)
class Prediction:
    """When an open frame will be complete."""

    expected_ms: int | None = described(
        "Processing time at which the frame is expected to be complete. Null if nothing is known.",
        example=1357557240000,
    )
    latest_ms: int | None = described(
        "Processing time until which 95 of 100 such frames are complete, by what was known at the end of the frame. "
        "Null if fewer than 19 delays were known.",
        example=1357559220000,
    )
    overdue: bool = described("Whether this time has passed.", example=False)
    frames: int = described("Number of earlier frames from which the latter was learned.", example=28)
    basis: Basis = described(
        "From what the expected time follows. `hour_of_day`: the delays of the frames that ended in the same hour of "
        "the last 28 days, in the time zone of the frames. `all_frames`: the delays of all frames that are known. "
        "`pace`: how fast the watermark has advanced in the last hour, because no earlier frame was as late, or too "
        "few are known.",
        example="hour_of_day",
    )


@dataclass(frozen=True, slots=True)
class FrameStatus:
    """A frame: whether it is complete, what was left out, and what has changed since.

    The pair of its start and its generation identifies what a consumer has processed.
    """

    start: int = described("Event time at which the frame starts.", example=1357552800000)
    end: int = described("Event time at which the frame ends.", example=1357556400000)
    state: FrameState = described(
        "`open`: results may be missing. `complete`: all results are written. `complete_with_exclusions`: the same, "
        "except for the exclusions. `empty`: no row exists, and each substream that was excluded has passed the end "
        "since, without rows of the frame.",
        example="complete",
    )
    generation: int | None = described("Latest generation. Null if the frame is open.", example=1)
    rows: FrameRows = described("Committed rows of the frame.")
    uncounted: bool = described(
        "Whether the frame may have further rows, because a client has not counted them.", example=False
    )
    exclusions: list[Exclusion] = described("What did not count when the watermark passed the end of the frame.")
    silent: Exclusion | None = described(
        "Idle substreams whose query had confirmed that they have no data. They are no exclusions.", example=None
    )
    queries: list[QueryBatch] = described("The first 20 queries with their latest batches at that time.")
    outputs: list[FrameOutput] = described(
        "Versions of tables in the latest generation. At these versions, the tables contain all results of the frame. "
        "Empty if the frame is open."
    )
    watermark: int | None = described("Watermark that passed the end of the frame.", example=1357556400000)
    record_id: str | None = described("Id of the record of the history with this watermark.", example="1357558200000-0")
    read_ms: int | None = described(
        "Processing time at which the watermark passed the end of the frame.", example=1357558200000
    )
    finished_ms: int | None = described(
        "Processing time at which the frame was finished. Null if it is open.", example=1357558201000
    )
    generations: list[Generation] = described("The generations, first one first.")
    changes: FrameRows | None = described("Rows since the latest generation, which make the next one.", example=None)
    changes_due_ms: int | None = described(
        "Observed time of the job at which they make the next generation.", example=None
    )
    prediction: Prediction | None = described(
        "When the frame will be complete. Null if it is not open, or if nothing is known.", example=None
    )


def frame_status(
    start: int,
    end: int,
    state: FrameState,
    record: FrameRecord | None,
    rows: HourCounts,
    generations: Sequence[FrameGeneration],
    changes: tuple[int, HourCounts] | None,
    uncounted_up_to: int | None,
) -> FrameStatus:
    """Return a frame as a read shows it, without its prediction. ``uncounted_up_to`` is that of the job."""
    due_ms, added = (None, NO_ROWS_OF_FRAME) if changes is None else changes
    finished_ms = None
    if record is None:
        exclusions, silent, queries = list[Exclusion](), None, list[QueryBatch]()
        of_frame = list[Generation]()
    else:
        exclusions = [each.of_frame(end) for each in record.exclusions if each.concerns(start, end)]
        silent = None
        if record.silent is not None and record.silent.concerns(start, end):
            silent = record.silent.of_frame(end)
        queries, first = list(record.queries), rows
        for each in (added, *(generation.added for generation in generations)):
            first = HourCounts(*(a - b for a, b in zip(astuple(first), astuple(each), strict=True)))
        if state != "open":
            # Frames without rows are finished when they are proven empty, also if they may have rows by then.
            is_proven = record.proven_ms is not None and not any(astuple(rows))
            finished_ms = record.proven_ms if is_proven else record.finished_ms
        at_ms = finished_ms or record.read_ms
        of_frame = [
            Generation(record.generation, at_ms, record.reason, FrameRows.of(first), list(record.outputs)),
            *(
                Generation(each.generation, each.at_ms, each.reason, FrameRows.of(each.added), list(each.outputs))
                for each in generations
            ),
        ]
    is_open = state == "open"
    return FrameStatus(
        start,
        end,
        state,
        None if is_open else of_frame[-1].generation,
        FrameRows.of(rows),
        uncounted_up_to is not None and start <= uncounted_up_to,
        exclusions,
        silent,
        queries,
        [] if is_open else of_frame[-1].outputs,
        None if record is None else record.watermark,
        None if record is None else record.record,
        None if record is None else record.read_ms,
        finished_ms,
        [] if is_open else of_frame,
        None if changes is None else FrameRows.of(added),
        due_ms,
        None,
    )


@dataclass(frozen=True, slots=True)
class FrameCounts:
    """Numbers of the frames of a job.

    Attributes:
        finished: Frames that were finished, by state, and generations after the first (``corrected``).
        open: Frames that have begun and are not finished.
        delays: Finished frames by delay from their end, as in :class:`~tidegate.domain.job.FrameLog`.
        delay_sum_ms: Sum of these delays.
    """

    finished: dict[str, int]
    open: int
    delays: tuple[int, ...]
    delay_sum_ms: int


def count_frames(job: JobState) -> FrameCounts | None:
    """Return the numbers of the frames of a job; None if it declares no frames."""
    frames, log = job.config.frames, job.frames
    if frames is None:
        return None
    latest = [*log.rows, *([] if job.max_event_time is None else [job.max_event_time])]
    first = _first_unfinished(frames, log)
    open_frames = 0
    if first is not None:
        open_frames = max(max(map(frames.number_of, latest), default=first - 1) + 1 - first, 0)
    counts = tuple(log.delays[at] for at in range(len(DELAYS_MS) + 1))
    return FrameCounts(
        {name: count for name, count in log.totals.items() if count}, open_frames, counts, log.delay_sum_ms
    )


def frames_between(job: JobState, first: int | None, last: int | None, most: int) -> list[FrameStatus]:
    """Return the frames from that of ``first`` to that of ``last``, latest first; None: no bound."""
    frames, log = job.config.frames, job.frames
    if frames is None:
        return []
    counted = [frames.number_of(start) for start in (*log.rows, *log.records)]
    open_from = _first_number(frames, log)
    if open_from is None:
        return []
    ends = [
        open_from - job.is_complete,
        *counted,
        *([] if job.max_event_time is None else [frames.number_of(job.max_event_time)]),
    ]
    high = max(ends) if last is None else min(max(ends), frames.number_of(last))
    low = min(map(frames.number_of, log.records), default=open_from)
    low = low if first is None else max(low, frames.number_of(first))
    found = []
    for number in range(high, max(low, high - most + 1) - 1, -1):
        start, end = frames.start_of(number), frames.start_of(number + 1)
        record = record_of(log, start) if log.unread is None or number < log.unread else None
        found.append(
            frame_status(
                start,
                end,
                frame_state(log, record, start, end),
                record,
                log.rows.get(start, NO_ROWS_OF_FRAME),
                log.generations.get(start, ()),
                log.changes.get(start),
                log.uncounted_up_to,
            )
        )
    return found
