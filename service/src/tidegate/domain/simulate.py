"""Simulations: how complete and how late the windows of a recorded stream are under a policy.

Rows come in the order of their arrival. The watermark advances before each row is classified; a row is late if its
window has ended by then. All numbers are integers of any size, in one unit.
"""

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tidegate.domain import commands
from tidegate.domain.config import JobConfig
from tidegate.domain.frame import Frame
from tidegate.domain.names import DIRECT
from tidegate.domain.numbers import NumberRange
from tidegate.domain.sketch import bucket_of
from tidegate.domain.state import JobState

UNBOUNDED = NumberRange(-(2**256), 2**256)
"""The range of a simulation: its numbers do not travel through JSON or Redis, so every integer is exact."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row; ``at`` is its arrival, for policies that follow the clock and for idle timeouts."""

    event_time: int
    substream: str
    at: int


@dataclass(frozen=True, slots=True)
class Step:
    """The state of a stream after one row."""

    event_time: int
    watermark: int | None
    max_event_time: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """The number of rows by outcome, and the latency of windows.

    ``dropped`` rows came after the grace of their window, ``updated`` ones within it. ``windows`` counts the emitted
    windows, not those open at the end. ``latency`` is the sum, over these, of how far the max event time was beyond the
    end of the window when it closed.
    """

    rows: int
    dropped: int
    updated: int
    windows: int
    latency: int

    @property
    def completeness(self) -> float:
        """The share of rows that were not dropped; 1 without rows."""
        return 1 - self.dropped / self.rows if self.rows else 1.0

    @property
    def average_latency(self) -> float | None:
        """The mean latency of a window; None without windows."""
        return self.latency / self.windows if self.windows else None


def classify(steps: Iterable[Step], size: int, grace: int = 0) -> Outcome:
    """Classify rows by tumbling windows of ``size`` that accept late rows for ``grace`` after their end."""
    windows = Frame(size, size)
    open_ends: list[int] = []
    is_open: set[int] = set()
    emitted: set[int] = set()
    rows = dropped = updated = count = latency = 0
    for step in steps:
        rows += 1
        watermark, max_event_time = step.watermark, step.max_event_time
        end = windows.higher(step.event_time, UNBOUNDED)
        if watermark is None or end > watermark:
            if end not in is_open:
                is_open.add(end)
                heapq.heappush(open_ends, end)
        elif end + grace > watermark:
            updated += 1
            if end not in emitted:  # its first row is late: the window had nothing to emit before
                emitted.add(end)
                count, latency = count + 1, latency + max_event_time - end
        else:
            dropped += 1
        while open_ends and watermark is not None and open_ends[0] <= watermark:
            end = heapq.heappop(open_ends)
            is_open.discard(end)
            emitted.add(end)
            count, latency = count + 1, latency + max_event_time - end
    return Outcome(rows, dropped, updated, count, latency)


def merged_event_times(rows: Iterable[Row], declared: Iterable[str] = ()) -> list[int | None]:
    """Return, after each row, the highest value so far of the lowest max event time of the substreams.

    Under a fixed lag and without limits the watermark is this less the lag. The result is that of
    :func:`through_machine`, at the cost of a heap.
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
    """Yield the stream under a fixed lag; ``merged`` is the result of :func:`merged_event_times`."""
    max_event_time: int | None = None
    for row, reached in zip(rows, merged, strict=True):
        max_event_time = row.event_time if max_event_time is None else max(max_event_time, row.event_time)
        yield Step(row.event_time, None if reached is None else reached - lag, max_event_time)


def through_machine(
    rows: Sequence[Row], config: JobConfig, declared: Iterable[str] = (), job: JobState | None = None
) -> Iterator[Step]:
    """Yield the stream under any configuration; each row is a report of its own at its arrival.

    Args:
        rows: Rows in the order of their arrival.
        config: Configuration to simulate.
        declared: Substreams that hold the watermark from the start.
        job: Job to use, for a caller that reads it afterwards; by default a new one.
    """
    if not rows:
        return
    job = job or new_job(config, rows[0].at)
    names = list(declared)
    if names:
        commands.declare(job, DIRECT, names, rows[0].at)
    for row in rows:
        known = job.substreams.get((DIRECT, row.substream))
        delays = {}
        if known is not None and known.max_event_time is not None:
            delay = known.max_event_time - config.throttle.classified_at(row.event_time, UNBOUNDED)
            delays[row.substream] = ((bucket_of(delay), 1),)
        result = commands.report(job, {row.substream: row.event_time}, row.at, delays=delays)
        assert job.max_event_time is not None
        yield Step(row.event_time, result.state.watermark, job.max_event_time)


def new_job(config: JobConfig, now_ms: int) -> JobState:
    """Return a job for numbers of any size."""
    job = JobState(config, now_ms, numbers=UNBOUNDED)
    commands.create(job)
    return job
