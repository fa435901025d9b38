"""Holds: instructions to keep C at or below a value."""

from tidegate.domain.journal import Kind
from tidegate.domain.results import Hold
from tidegate.domain.state import JobState


def in_order(job: JobState) -> list[Hold]:
    """Return all holds, sorted by value, then by name."""
    return sorted(job.holds.values(), key=lambda hold: (hold.at_most, hold.hold.encode()))


def lowest(job: JobState) -> Hold | None:
    """Return the lowest hold, which limits C; None if the job has no hold."""
    return next(iter(in_order(job)), None)


def cap(job: JobState, watermark: int | None) -> int | None:
    """Return the lower of the watermark and the lowest hold."""
    hold = lowest(job)
    return watermark if hold is None or watermark is None else min(watermark, hold.at_most)


def expire(job: JobState) -> None:
    """Remove expired holds."""
    for hold in [hold for hold in job.holds.values() if not hold.in_force(job.now_ms)]:
        del job.holds[hold.hold]
        job.journal.write(job.now_ms, Kind.HOLD_EXPIRED, hold=hold.hold)
