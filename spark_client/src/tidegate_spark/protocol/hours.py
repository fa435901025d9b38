"""Row counts by hour of event time, in the coordinator's format."""

from collections.abc import Iterable, Sequence

HOUR = 3_600_000
"""Length of an hour of event time, in milliseconds."""
HOURS_KEPT = 168
"""Number of hours that the coordinator keeps."""

Hours = list[list[int]]
"""A list for each hour: the number of the hour since the epoch, its rows, its updated rows and its late rows."""


def hours_between(min_event_time: int | None, max_event_time: int | None) -> int:
    """Return an upper bound for the number of hours that :func:`spread` returns."""
    if min_event_time is None or max_event_time is None:
        return 0
    return min(max_event_time // HOUR - min_event_time // HOUR + 1, HOURS_KEPT)


def spread(min_event_time: int | None, max_event_time: int | None, rows: int) -> Hours:
    """Spread on-time rows evenly over the hours from their lowest to their highest event time."""
    if min_event_time is None or max_event_time is None or not rows:
        return []
    last = max_event_time // HOUR
    first = max(min_event_time // HOUR, last - HOURS_KEPT + 1)

    def before(hour: int) -> int:
        time = min(max(hour * HOUR, min_event_time), max_event_time + 1)
        return rows * (time - min_event_time) // (max_event_time + 1 - min_event_time)

    found = ([hour, before(hour + 1) - before(hour), 0, 0] for hour in range(first, last + 1))
    return [counted for counted in found if counted[1]]


def merge_hours(lists: Iterable[Sequence[Sequence[int]]]) -> Hours:
    """Add up the counts of several lists, so that each hour occurs once."""
    found: dict[int, list[int]] = {}
    for hours in lists:
        for hour, *counts in hours:
            found[hour] = [*map(sum, zip(found.get(hour, [0] * len(counts)), counts, strict=True))]
    return [[hour, *counts] for hour, counts in sorted(found.items())]
