"""Predictions of when frames are complete, from the delays of the job's earlier frames.

The *delay* of a frame is the time from its end until it was finished. The bound of a frame is an order statistic of
the delays of earlier frames. If the order of the delays is random, the next delay is not above the ``ceil(0.95 * (n +
1))``-th lowest of ``n`` delays in at least 95 of 100 cases. This needs 19 delays. Source: Vovk, Gammerman and Shafer,
"Algorithmic Learning in a Random World", 2005 (conformal prediction).

Delays at the same hour of the day are more alike than others. With those of the last 28 days, the bounds are narrower
than with all delays, or with those of the same weekday: on the flights of 2013, 12.9 hours on average, not 16.1 and
13.3. Each holds for 95 to 96 of 100 hours.
"""

import math
from bisect import bisect_right, insort
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

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
EARLIEST_SHOWN_MS = -62_135_596_800_000
"""Start of the year 1, in which the calendar of Python starts."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """How often the predictions of earlier frames were right."""

    frames: int = described("Number of frames, the latest ones, for which a bound was known at their end.", example=500)
    held: float = described("Share of these frames that were complete until their bound.", example=0.957)


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
    """Return the pace of a job in the last hour; None if its watermark does not advance.

    Args:
        samples: Samples of the watermark, oldest first. Each is the watermark until the next one.
        now_ms: Processing time.
        watermark: The watermark at this time.
        written: The written watermark at this time.
    """
    start_ms, known = now_ms - HOUR_MS, [(each.at_ms, each.watermark) for each in samples if each.watermark is not None]
    if not known or watermark is None or written is None:
        return None
    _, before = max((each for each in known if each[0] <= start_ms), default=known[0])
    took_ms = now_ms - max(known[0][0], start_ms)
    return Pace(now_ms, written, (watermark - before) / took_ms) if took_ms > 0 and watermark > before else None


class _Learned:
    """The delays of the frames that were finished before some processing time."""

    def __init__(self, frames: Frames) -> None:
        self._zone = ZoneInfo(frames.time_zone) if frames.time_zone else UTC
        per_hour = 1 if frames.is_calendar else max(HOUR_MS // frames.length, 1)
        self._least = LEAST_DAYS * per_hour
        self._of_hour: dict[int, deque[int]] = defaultdict(lambda: deque[int](maxlen=DAYS * per_hour))
        self._all: list[int] = []

    def _hour(self, end: int) -> int:
        last = end - 1  # the frame's end is in the next hour
        if self._zone is UTC or last < EARLIEST_SHOWN_MS + DAY_MS:
            return last % DAY_MS // HOUR_MS
        return datetime.fromtimestamp(last / 1000, self._zone).hour

    def add(self, completion: Completion) -> None:
        self._of_hour[self._hour(completion.end)].append(completion.delay_ms)
        insort(self._all, completion.delay_ms)

    def delays(self, end: int) -> tuple[Sequence[int], Basis] | None:
        """Return the delays, lowest first, that are used for a frame; None if too few are known."""
        of_hour = self._of_hour.get(self._hour(end), ())
        if len(of_hour) >= self._least:
            return sorted(of_hour), "hour_of_day"
        return (self._all, "all_frames") if len(self._all) >= LEAST_DAYS else None


def bound_of(delays: Sequence[int]) -> int:
    """Return the bound of the next delay. ``delays`` has 19 or more, lowest first."""
    return delays[-(-PERCENT * (len(delays) + 1) // 100) - 1]


def observed_live(completions: Sequence[Completion]) -> list[Completion]:
    """Return the completions of frames that ended after the first one was finished, in the order of their ends.

    Frames that ended before are of a backfill: the job did not exist, and their delay says nothing about it.
    """
    return sorted(each for each in completions if each.end > completions[0].finished_ms)


class Predictor:
    """Predicts when the open frames of a job will be complete.

    Args:
        frames: The declaration.
        completions: Completions of the latest frames, in the order in which they were finished.
        unfinished: End of the first frame that is not finished; None if the job has no frames.
        pace: Pace of the job; None if unknown.
        now_ms: Processing time.
    """

    def __init__(
        self, frames: Frames, completions: Sequence[Completion], unfinished: int | None, pace: Pace | None, now_ms: int
    ) -> None:
        self._frames, self._unfinished, self._pace, self._now_ms = frames, unfinished, pace, now_ms
        self._live = observed_live(completions)
        self._learned = _Learned(frames)
        for completion in self._live:
            self._learned.add(completion)
        # Frames are finished in order. If the first one is later than all delays, so are the others.
        self._follows_pace = unfinished is None or self._remaining(unfinished) is None

    def _remaining(self, end: int) -> int | None:
        """Return the median of the delays that are still possible; None if there are none."""
        found = self._learned.delays(end)
        if found is None:
            return None
        delays, _ = found
        possible = delays[bisect_right(delays, self._now_ms - end) :]
        return possible[len(possible) // 2] if possible else None

    def predict(self, end: int) -> Prediction | None:
        """Return when a frame will be complete; None if nothing is known.

        A frame before the first one that is not finished waits for evidence that it is empty, which has no usual time.
        """
        if self._unfinished is not None and end < self._unfinished:
            return None
        found = self._learned.delays(end)
        latest_ms = None if found is None else end + bound_of(found[0])
        delay_ms = None if self._follows_pace else self._remaining(end)
        if found is not None and delay_ms is not None:
            expected_ms, basis = end + delay_ms, found[1]
        elif self._pace is not None:
            expected_ms, basis = self._pace.reaches(end), "pace"
        elif found is not None:
            expected_ms, basis = None, found[1]
        else:
            return None
        is_overdue = latest_ms is not None and latest_ms < self._now_ms
        return Prediction(expected_ms, latest_ms, is_overdue, 0 if found is None else len(found[0]), basis)

    def calibration(self) -> Calibration | None:
        """Return how often the bounds of earlier frames held; None if no earlier frame had a bound.

        The bound of each frame is computed again, from the frames that were finished before its end.
        """
        return calibration_of(self._frames, self._live)


def calibration_of(frames: Frames, live: Sequence[Completion]) -> Calibration | None:
    """Return how often the bounds of frames held, which are in the order of their ends."""
    learned, finished = _Learned(frames), sorted(live, key=lambda each: each.finished_ms)
    known = count = held = 0
    for completion in live:
        while known < len(finished) and finished[known].finished_ms <= completion.end:
            learned.add(finished[known])
            known += 1
        found = learned.delays(completion.end)
        if found is not None:
            count += 1
            held += completion.delay_ms <= bound_of(found[0])
    return Calibration(count, held / count) if count else None
