"""Simulations of a recorded stream under a policy, for the completeness and the latency of its windows.

A stream is a sequence of batches, sorted by arrival. Without batches, each row is one, and the watermark advances
before the row is classified. The rows of a recorded batch are compared with the watermark from before the batch, as a
client compares them with their pinned watermark. A row is late if its window has closed by then. All numbers are
integers of any size, in one unit.
"""

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tidegate.domain import commands
from tidegate.domain.batches import BeginOptions, PartitionReport, begin, commit, heartbeat, stage
from tidegate.domain.calendar import Frames
from tidegate.domain.completeness import BatchAccounting, RowCounts, bucket_of
from tidegate.domain.config import Frame, JobConfig
from tidegate.domain.evaluate import held_by
from tidegate.domain.job import JobState, Run
from tidegate.domain.results import Holder
from tidegate.domain.values import DIRECT, NumberRange

UNBOUNDED = NumberRange(-(2**256), 2**256)
"""The range of a simulation, which does not use JSON or Redis, so that every integer is exact."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a stream. Policies that follow the clock and idle timeouts use its arrival time ``at``."""

    event_time: int
    substream: str
    at: int


@dataclass(frozen=True, slots=True)
class RecordedBatch:
    """A batch of a recorded stream.

    Attributes:
        at: Processing time of the batch.
        max_event_times: Highest event time by substream, of those with rows.
        rows: Event times, and the number of rows that have them, or that fall into the same window.
    """

    at: int
    max_event_times: Mapping[str, int]
    rows: Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Step:
    """The state of a stream after one batch.

    Attributes:
        rows: Event times of the batch, with numbers of rows.
        late: The watermark with which the rows are compared; None if none is late.
        watermark: The watermark after the batch.
        max_event_time: Highest event time of the stream so far.
        holder: What keeps the watermark at its value; None without one, or if it was not asked for.
    """

    rows: Sequence[tuple[int, int]]
    late: int | None
    watermark: int | None
    max_event_time: int
    holder: Holder | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The number of rows by outcome, and the latency of windows.

    ``updated`` rows are late rows within the grace period of their window; ``dropped`` rows arrived after that period.
    ``windows`` is the number of emitted windows. ``latency`` is the sum of the latencies of these windows. The latency
    of a window is the distance from its end to the max event time when the window is emitted.
    """

    rows: int
    dropped: int
    updated: int
    windows: int
    latency: int

    @property
    def completeness(self) -> float:
        """The share of rows that were not dropped; 1 if the stream has no rows."""
        return 1 - self.dropped / self.rows if self.rows else 1.0

    @property
    def average_latency(self) -> float | None:
        """The mean latency of the emitted windows; None before the first emitted window."""
        return self.latency / self.windows if self.windows else None


def classify(steps: Iterable[Step], size: int, grace: int = 0) -> Outcome:
    """Classify rows by tumbling windows of ``size`` that accept late rows for ``grace`` after their end."""
    windows = Frame(size, size)
    open_ends: list[int] = []
    is_open: set[int] = set()
    emitted: set[int] = set()
    rows = dropped = updated = count = latency = 0
    for step in steps:
        late, watermark, max_event_time = step.late, step.watermark, step.max_event_time
        for event_time, number in step.rows:
            rows += number
            end = windows.higher(event_time, UNBOUNDED)
            if late is None or end > late:
                if end not in is_open:
                    is_open.add(end)
                    heapq.heappush(open_ends, end)
            elif end + grace > late:
                updated += number
                if end not in emitted:  # the window had no rows when it closed, so this late row emits it
                    emitted.add(end)
                    count, latency = count + 1, latency + max_event_time - end
            else:
                dropped += number
        while open_ends and watermark is not None and open_ends[0] <= watermark:
            end = heapq.heappop(open_ends)
            is_open.discard(end)
            emitted.add(end)
            count, latency = count + 1, latency + max_event_time - end
    return Outcome(rows, dropped, updated, count, latency)


def merged_event_times(rows: Iterable[Row], declared: Iterable[str] = ()) -> list[int | None]:
    """Return the merged max event time after each row: the minimum over the substreams, which never goes back.

    Under a fixed lag and without limits, the watermark is this value minus the lag. :func:`through_machine` yields
    the same watermarks more slowly.
    """
    unseen = set(declared)
    max_event_times: dict[str, int] = {}
    lowest: list[tuple[int, str]] = []
    reached: int | None = None
    found: list[int | None] = []
    for row in rows:
        unseen.discard(row.substream)
        if row.event_time > max_event_times.get(row.substream, row.event_time - 1):
            max_event_times[row.substream] = row.event_time
            heapq.heappush(lowest, (row.event_time, row.substream))
        while max_event_times[lowest[0][1]] != lowest[0][0]:
            heapq.heappop(lowest)
        if not unseen:
            reached = lowest[0][0] if reached is None else max(reached, lowest[0][0])
        found.append(reached)
    return found


def under_lag(rows: Sequence[Row], merged: Sequence[int | None], lag: int) -> Iterator[Step]:
    """Yield the steps of a stream under a fixed lag; ``merged`` is the result of :func:`merged_event_times`."""
    max_event_time: int | None = None
    for row, reached in zip(rows, merged, strict=True):
        max_event_time = row.event_time if max_event_time is None else max(max_event_time, row.event_time)
        watermark = None if reached is None else reached - lag
        yield Step(((row.event_time, 1),), watermark, watermark, max_event_time)


def through_machine(
    rows: Sequence[Row], config: JobConfig, declared: Iterable[str] = (), job: JobState | None = None
) -> Iterator[Step]:
    """Yield the steps of a stream under any configuration; each row is a separate report at its arrival.

    Args:
        rows: Rows, sorted by arrival.
        config: Configuration to simulate.
        declared: Substreams that hold the watermark from the start.
        job: Job that receives the reports; a caller can read its state afterwards. None: a new job.
    """
    if not rows:
        return
    job = job or new_job(config, rows[0].at)
    names = list(declared)
    if names:
        commands.declare(job, DIRECT, names, rows[0].at)
    for row in rows:
        if config.max_retention_ms is not None:  # acts in sweeps
            commands.sweep(job, row.at)
        known = job.substreams.get((DIRECT, row.substream))
        delays = {}
        if known is not None and known.max_event_time is not None:
            delay = known.max_event_time - config.throttle.classified_at(row.event_time, UNBOUNDED)
            delays[row.substream] = ((bucket_of(delay), 1),)
        result = commands.report(job, {row.substream: row.event_time}, row.at, delays=delays)
        assert job.max_event_time is not None
        watermark = result.state.watermark
        yield Step(((row.event_time, 1),), watermark, watermark, job.max_event_time)


def in_batches(batches: Sequence[RecordedBatch], config: JobConfig) -> Iterator[Step]:
    """Yield the steps of recorded batches under any configuration, with the holders of the watermark.

    They are the batches of one query that always runs: each has all input until then, and between two of them there is
    no input. The query looks for input as often as the closest batches show. Limits have the evidence of this.

    Args:
        batches: Batches, sorted by arrival.
        config: Configuration to simulate.
    """
    if not batches:
        return
    job, run = new_job(config, batches[0].at), Run("recorded", "checkpoint", "run")
    closest_ms = min({after.at - before.at for before, after in pairwise(batches)} - {0}, default=0)
    for number, batch in enumerate(batches):
        looked_ms = batch.at - closest_ms
        if number and looked_ms > batches[number - 1].at:
            heartbeat(job, run, looked_ms, looked_ms)
        commands.sweep(job, batch.at)
        late = begin(job, run, number, batch.at, BeginOptions(input_age_ms=0)).pinned_watermark
        stage(job, run, number, PartitionReport(0, batch.max_event_times), batch.at)
        commit(job, run, number, _accounting(batch, config.frames), batch.at)
        if job.max_event_time is not None:
            yield Step(batch.rows, late, job.watermark, job.max_event_time, held_by(job))


def _accounting(batch: RecordedBatch, frames: Frames | None) -> BatchAccounting:
    """Return the rows of a batch by frame, which are all that the watermark needs."""
    names, by_frame = tuple(batch.max_event_times), Counter[int]()
    if frames is not None:
        for event_time, number in batch.rows:
            by_frame[frames.start_of(frames.number_of(event_time))] += number
    rows = tuple((time, number, 0, 0) for time, number in by_frame.items())
    return BatchAccounting(names, (RowCounts(0, 0, 0, 0, 0),) * len(names), frames=rows)


def new_job(config: JobConfig, now_ms: int) -> JobState:
    """Return a new job that accepts numbers of any size."""
    job = JobState(config, now_ms, numbers=UNBOUNDED)
    commands.create(job)
    return job
