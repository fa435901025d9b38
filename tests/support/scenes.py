"""Jobs with a past, for tests and pictures of the operators' page: reports at processing times of the last day."""

import math
from collections.abc import Iterable

from tests.support.store import JobStore
from tidegate.domain.calendar import Frames
from tidegate.domain.config import JobConfig
from tidegate.domain.policies import LimitingLag

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
AIRPORTS = ("ATL", "BOS", "DEN", "HNL", "JFK", "LAX", "MIA", "ORD", "SEA", "SFO", "SJU", "STL")
LAG_MS = 10 * MINUTE


async def create(store: JobStore, job: str, at_ms: int, idle_timeout_ms: int | None = None) -> None:
    """Create a job with a lag of ten minutes at a processing time."""
    config = {
        "policy": {"type": "limiting_lag", "lag_ms": LAG_MS},
        "max_future_skew_ms": None,
        "idle_timeout_ms": idle_timeout_ms,
    }
    parsed = JobConfig(LimitingLag(LAG_MS), max_future_skew_ms=None, idle_timeout_ms=idle_timeout_ms)
    await store.configure(job, parsed, config, None, now_ms=at_ms)


async def past_day(store: JobStore, job: str, now_ms: int, event_time_shift_ms: int = 0) -> None:
    """Create a job that twelve airports have reported to for a day, every two minutes.

    HNL was two hours behind between 9 and 7 hours ago, and has been behind for the last 40 minutes. SJU was an hour
    behind between 4 and 3 hours ago. ATL has been silent for three hours, and is idle.

    Args:
        store: The store of the job.
        job: Name of the job.
        now_ms: Processing time of the last report.
        event_time_shift_ms: Distance of event times from processing time, as in a replay.
    """
    await create(store, job, now_ms - DAY, idle_timeout_ms=90 * MINUTE)
    for at_ms in range(now_ms - DAY, now_ms + 1, 2 * MINUTE):
        ago = now_ms - at_ms
        await store.report(job, dict(_event_times(at_ms + event_time_shift_ms, ago)), now_ms=at_ms)


def _event_times(at_ms: int, ago_ms: int) -> Iterable[tuple[str, int]]:
    for number, airport in enumerate(AIRPORTS):
        delay = int((2 + number % 4 + math.sin(ago_ms / HOUR + number)) * MINUTE)
        if airport == "HNL" and 7 * HOUR < ago_ms < 9 * HOUR:
            delay = 2 * HOUR
        elif airport == "HNL" and ago_ms < 40 * MINUTE:
            delay += 40 * MINUTE - ago_ms
        elif airport == "SJU" and 3 * HOUR < ago_ms < 4 * HOUR:
            delay = HOUR
        if airport != "ATL" or ago_ms > 3 * HOUR:
            yield airport, at_ms - delay


async def hourly(store: JobStore, job: str, now_ms: int) -> None:
    """Create a job with hourly frames that two airports have reported to for 30 days, every half hour.

    Each hour is complete half an hour to two hours after its end, later in the evening. HNL has not reported for the
    last six hours.
    """
    start_ms = now_ms - 30 * DAY
    frames = Frames("hour")
    config = JobConfig(LimitingLag(LAG_MS), max_future_skew_ms=None, frames=frames)
    sent = {"policy": {"type": "limiting_lag", "lag_ms": LAG_MS}, "max_future_skew_ms": None}
    declared = {"every": "hour", "offset_ms": 0, "time_zone": None, "correction_delay_ms": 60_000}
    await store.configure(job, config, sent | {"frames": declared}, None, now_ms=start_ms)
    for at_ms in range(start_ms, now_ms + 1, 30 * MINUTE):
        delay = (20 + 4 * (at_ms // HOUR % 24) + at_ms // HOUR * 7 % 11) * MINUTE
        times = {"BOS": at_ms - 5 * MINUTE}
        if at_ms < now_ms - 6 * HOUR:
            times["HNL"] = at_ms - delay
        await store.report(job, times, now_ms=at_ms)


async def many(store: JobStore, job: str, now_ms: int, substreams: int) -> None:
    """Create a job with many substreams. One in 1,500 is far behind, and one in twenty is idle."""
    await create(store, job, now_ms - HOUR, idle_timeout_ms=20 * MINUTE)
    names = [f"sensor-{number:05}" for number in range(substreams)]
    for at_ms in range(now_ms - HOUR, now_ms + 1, 10 * MINUTE):
        for first in range(0, substreams, 1000):
            await store.report(
                job,
                {
                    name: at_ms - _delay_of(number)
                    for number, name in enumerate(names[first : first + 1000], start=first)
                    if number % 20 or at_ms < now_ms - HOUR // 2
                },
                now_ms=at_ms,
            )


def _delay_of(number: int) -> int:
    if number % 1500 == 7:
        return 50 * MINUTE + number
    return int((1 + 0.5 * math.sin(number) + 3 * math.exp(-(number % 97) / 12)) * MINUTE)
