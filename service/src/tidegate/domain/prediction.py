"""Predictions of when frames are complete, from the delays of the job's earlier frames.

The *delay* of a frame is the time from its end until it was finished. The bound of a frame is an order statistic of
the delays of earlier frames. If the order of the delays is random, the next delay is not above the ``ceil(0.95 * (n +
1))``-th lowest of ``n`` delays in at least 95 of 100 cases. This needs 19 delays. Source: Vovk, Gammerman and Shafer,
"Algorithmic Learning in a Random World", 2005 (conformal prediction).

Delays at the same hour of the day are more alike than others. With those of the last 28 days, the bounds are narrower
than with all delays, or with those of the same weekday: on the flights of 2013, 12.9 hours on average, not 16.1 and
13.3. Each holds for 95 to 96 of 100 hours.

The bound of a frame uses only frames that were finished before its end, so it stays as it is from then on.
"""

import math
from bisect import bisect_right, insort
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from tidegate.domain.calendar import DAY_MS, HOUR_MS, Frames
from tidegate.domain.frames import Basis, Prediction
from tidegate.domain.history import Sample
from tidegate.domain.job import Completion
from tidegate.domain.values import described

PERCENT = 95
"""Percentage of the frames for which the bound holds."""
LEAST_DAYS = 19
"""Number of days, or of delays of any hour, below which nothing is learned: no bound would be high enough."""
DAYS = 28
"""Number of days whose delays at the same hour are used."""
PAUSE_MS = 900_000
"""Time without an advance of the watermark after which it has no pace."""
HOUR_OF_DAY: Basis = "hour_of_day"
ALL_FRAMES: Basis = "all_frames"
MOST_OPEN = 2000
"""Maximum number of open frames that a calibration counts."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """How often the predictions of earlier frames were right."""

    frames: int = described("Number of frames, the latest ones, for which a bound was known at their end.", example=500)
    held: float = described(
        "Share of these frames that were complete by their bound. Open frames count once they are overdue.",
        example=0.957,
    )


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast the watermark of a job advances.

    Attributes:
        now_ms: Processing time.
        written: The written watermark at this time.
        rate: Event time per processing time.
    """

    now_ms: int
    written: int
    rate: float

    def reaches(self, time: int) -> int:
        """Return the processing time at which the written watermark reaches an event time at this pace."""
        return self.now_ms + max(math.ceil((time - self.written) / self.rate), 0)


def pace_of(samples: Sequence[Sample], now_ms: int, watermark: int | None, written: int | None) -> Pace | None:
    """Return the pace of a job in the last hour; None if it has none.

    A watermark that has not advanced for a quarter of an hour has no pace, nor has one that has advanced by a jump.

    Args:
        samples: Samples of the watermark, oldest first. Each is the watermark until the next one.
        now_ms: Processing time.
        watermark: The watermark at this time.
        written: The written watermark at this time.
    """
    start_ms, known = now_ms - HOUR_MS, [(each.at_ms, each.watermark) for each in samples if each.watermark is not None]
    if not known or watermark is None or written is None:
        return None
    before = max((each for each in known if each[0] <= start_ms), default=known[0])
    reached = [before, *(each for each in known if each > before), (now_ms, watermark)]
    advanced, took_ms = watermark - before[1], now_ms - max(known[0][0], start_ms)
    lower = [at_ms for at_ms, value in reached if value < watermark]
    if took_ms <= 0 or not lower or now_ms - lower[-1] > PAUSE_MS:
        return None
    if max(later[1] - earlier[1] for earlier, later in pairwise(reached)) > advanced / 2:
        return None
    return Pace(now_ms, written, advanced / took_ms)


class _Delays:
    """The latest delays of some frames, also in ascending order."""

    def __init__(self, most: int | None = None) -> None:
        self._most, self._latest = most, deque[int]()
        self.ascending: list[int] = []

    def add(self, delay_ms: int) -> None:
        self._latest.append(delay_ms)
        insort(self.ascending, delay_ms)
        if self._most is not None and len(self._latest) > self._most:
            self.ascending.remove(self._latest.popleft())


class _Known(NamedTuple):
    """What is known of a frame.

    Attributes:
        latest_ms: Its bound, as a processing time.
        remaining_ms: The median of the delays that are still possible; None if there are none.
        lowest_ms: The lowest delay.
        frames: Number of delays.
    """

    latest_ms: int
    remaining_ms: int | None
    lowest_ms: int
    frames: int
    basis: Basis


class Predictor:
    """Predicts when the open frames of a job will be complete.

    Args:
        frames: The declaration.
        completions: Completions of the latest frames, in the order in which they were finished. All of these frames
            ended after the job had finished its first one.
        unfinished: End of the first frame that is not finished; None if the job has no frames.
        pace: Pace of the job; None if it has none.
        now_ms: Processing time.
    """

    def __init__(
        self, frames: Frames, completions: Sequence[Completion], unfinished: int | None, pace: Pace | None, now_ms: int
    ) -> None:
        self._frames, self._unfinished, self._pace, self._now_ms = frames, unfinished, pace, now_ms
        # A frame that was finished before its end has event times ahead of the clock: no delay was observed.
        self._live = [each for each in completions if each.finished_ms >= each.end]
        length = DAY_MS if frames.every == "day" else None if frames.is_calendar else frames.length
        self._has_hours = length is not None and DAY_MS % length == 0
        self._per_hour = 1 if length is None else max(HOUR_MS // length, 1)

    def _hour(self, end: int) -> int:
        """Return the hour of the day, in the time zone of the frames, in which a frame ends."""
        last, zone = end - 1, self._frames.zone
        return (last + zone.offsets[bisect_right(zone.changes, last)]) % DAY_MS // HOUR_MS

    def _known(self, ends: Iterable[int]) -> dict[int, _Known]:
        """Return what was known of frames at their ends, or is known now; frames without enough delays are absent."""
        of_all, of_hours = _Delays(), defaultdict[int, _Delays](lambda: _Delays(DAYS * self._per_hour))
        found: dict[int, _Known] = {}
        learned = 0
        for end in sorted(set(ends)):
            until_ms = min(end, self._now_ms + 1)
            while learned < len(self._live) and self._live[learned].finished_ms < until_ms:
                completion = self._live[learned]
                of_all.add(completion.delay_ms)
                if self._has_hours:
                    of_hours[self._hour(completion.end)].add(completion.delay_ms)
                learned += 1
            delays, basis = of_all.ascending, ALL_FRAMES
            if self._has_hours:
                of_hour = of_hours[self._hour(end)].ascending
                if len(of_hour) >= LEAST_DAYS * self._per_hour:
                    delays, basis = of_hour, HOUR_OF_DAY
            if len(delays) >= LEAST_DAYS:
                possible = bisect_right(delays, self._now_ms - end)
                remaining = delays[(possible + len(delays)) // 2] if possible < len(delays) else None
                found[end] = _Known(end + bound_of(delays), remaining, delays[0], len(delays), basis)
        return found

    def predictions(self, ends: Sequence[int]) -> list[Prediction | None]:
        """Return when frames with these ends will be complete; None if nothing is known of a frame.

        A frame before the first one that is not finished waits for evidence that it is empty, which has no usual time.
        """
        first = self._unfinished
        if first is None:
            return [None] * len(ends)
        known = self._known([first, *ends])
        # Frames are finished in order. If the first one is later than all delays, the others are too.
        is_late = first not in known or known[first].remaining_ms is None
        earliest_ms, _ = self._expected(first, known.get(first), is_late)
        found: list[Prediction | None] = []
        for end in ends:
            of_frame = known.get(end)
            expected_ms, basis = self._expected(end, of_frame, is_late)
            if end < first or (of_frame is None and expected_ms is None):
                found.append(None)
                continue
            if expected_ms is not None and earliest_ms is not None:
                expected_ms = max(expected_ms, earliest_ms)
            latest_ms, frames = (None, 0) if of_frame is None else (of_frame.latest_ms, of_frame.frames)
            is_overdue = latest_ms is not None and latest_ms < self._now_ms
            found.append(Prediction(expected_ms, latest_ms, is_overdue, frames, basis))
        return found

    def _expected(self, end: int, known: _Known | None, is_late: bool) -> tuple[int | None, Basis]:
        """Return when a frame is expected to be complete, and from what."""
        if known is not None and known.remaining_ms is not None and not is_late:
            return end + known.remaining_ms, known.basis
        if self._pace is None:
            return None, "pace" if known is None else known.basis
        expected_ms = self._pace.reaches(end)
        if end > self._now_ms:  # its last rows do not exist yet
            expected_ms = max(expected_ms, end + (0 if known is None else known.lowest_ms))
        return expected_ms, "pace"

    def calibration(self) -> Calibration | None:
        """Return how often the bounds of earlier frames held; None if no earlier frame had a bound."""
        known = self._known([*(each.end for each in self._live), *self._open_ends()])
        held = sum(each.finished_ms <= known[each.end].latest_ms for each in self._live if each.end in known)
        count = sum(each.end in known for each in self._live)
        count += sum(end in known and known[end].latest_ms < self._now_ms for end in self._open_ends())
        return Calibration(count, held / count) if count else None

    def _open_ends(self) -> list[int]:
        """Return the ends of the open frames that have ended."""
        ends: list[int] = []
        end = self._unfinished
        while end is not None and end <= self._now_ms and len(ends) < MOST_OPEN:
            ends.append(end)
            end = self._frames.end_after(end)
        return ends


def bound_of(delays: Sequence[int]) -> int:
    """Return the bound of the next delay. ``delays`` has 19 or more, lowest first."""
    return delays[-(-PERCENT * (len(delays) + 1) // 100) - 1]
