"""What a lag, or any policy, would have made of a stream that is over: how complete its windows, and how late.

Rows come in the order in which they arrived. Each is judged after the watermark has taken it into account: it is late
where its window has ended by then. All numbers are whole, in a unit of the caller's; they may be of any size.
"""

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tidegate.domain.config import JobConfig
from tidegate.domain.frame import Frame
from tidegate.domain.job import JobMachine
from tidegate.domain.numbers import NumberRange
from tidegate.domain.sketch import bucket_of
from tidegate.domain.state import DIRECT

UNBOUNDED = NumberRange(-(2**256), 2**256)
"""Nothing here goes through JSON or Redis: whatever Python can hold is held exactly."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row as it arrived. ``at``: when, for policies that follow the clock and for limits on silence."""

    event_time: int
    substream: str
    at: int


@dataclass(frozen=True, slots=True)
class Moment:
    """Where a stream is once a row has been taken into account. ``watermark`` None: there is none yet."""

    event_time: int
    watermark: int | None
    max_event_time: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the rows: ``dropped`` came after their windows had ended, and after the grace; ``updated`` within
    it.

    ``windows`` were emitted; those that the stream left open were not. ``latency`` is the sum, over these, of how far
    the top was beyond the end of the window when it closed.
    """

    rows: int
    dropped: int
    updated: int
    windows: int
    latency: int

    @property
    def completeness(self) -> float:
        """The share of the rows that were counted in the end; 1 where there were none."""
        return 1 - self.dropped / self.rows if self.rows else 1.0

    @property
    def average_latency(self) -> float | None:
        return self.latency / self.windows if self.windows else None


def judge(moments: Iterable[Moment], size: int, grace: int = 0) -> Outcome:
    """Counts rows by tumbling windows of ``size``; a window that has ended takes late rows for ``grace`` more."""
    windows = Frame(size, size)
    open_ends: list[int] = []
    is_open: set[int] = set()
    emitted: set[int] = set()
    rows = dropped = updated = count = latency = 0
    for moment in moments:
        rows += 1
        watermark, max_event_time = moment.watermark, moment.max_event_time
        end = windows.higher(moment.event_time, UNBOUNDED)
        if watermark is None or end > watermark:
            if end not in is_open:
                is_open.add(end)
                heapq.heappush(open_ends, end)
        elif end + grace > watermark:
            updated += 1
            if end not in emitted:  # its first row is late: only now there is something to emit
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


def merged_tops(rows: Iterable[Row], declared: Iterable[str] = ()) -> list[int | None]:
    """After each row, how far the lowest of the substreams' tops has ever been: under a fixed lag, and without limits,
    the watermark is that less the lag. The same as :func:`through_machine` then, at the price of a heap.
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


def under_lag(rows: Sequence[Row], merged: Sequence[int | None], lag: int) -> Iterator[Moment]:
    """The stream under a fixed lag; ``merged`` is what :func:`merged_tops` found."""
    max_event_time: int | None = None
    for row, reached in zip(rows, merged, strict=True):
        max_event_time = row.event_time if max_event_time is None else max(max_event_time, row.event_time)
        yield Moment(row.event_time, None if reached is None else reached - lag, max_event_time)


def through_machine(
    rows: Sequence[Row], config: JobConfig, declared: Iterable[str] = (), machine: JobMachine | None = None
) -> Iterator[Moment]:
    """The stream under any rules, by the machine itself: each row is a report of its own, when it arrived.

    ``declared``: substreams that hold the watermark from the start. ``machine``: a new one with these rules, for who
    wants to know more of it afterwards.
    """
    if not rows:
        return
    job = machine or JobMachine(config, rows[0].at, numbers=UNBOUNDED)
    names = list(declared)
    if names:
        job.declare(DIRECT, names, rows[0].at)
    for row in rows:
        known = job.substreams.get((DIRECT, row.substream))
        delays = {}
        if known is not None and known.max_event_time is not None:
            delays[row.substream] = (
                (bucket_of(known.max_event_time - config.judged_at(row.event_time, UNBOUNDED)), 1),
            )
        answer = job.report({row.substream: row.event_time}, row.at, delays=delays).answer
        assert job.max_event_time is not None
        yield Moment(row.event_time, answer.watermark, job.max_event_time)
