"""Rows by hour of event time, as a coordinator's ledger of late rows takes them."""

from collections.abc import Iterable, Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F

from tidegate_spark.judgement import credible

HOUR = 3_600_000
"""Units of event time."""
HOURS_KEPT = 168
"""That many a coordinator keeps; rows that are not late are not told of for more."""

Hours = list[list[int]]
"""Hours, counted from 0; of each how many rows there are, how many are *updated*, and how many *late*."""


def hour_of(time: Column, latest: Column) -> Column:
    """The hour of an event time; null where it has none that can be true."""
    known = credible(time, latest)
    return ((known - F.pmod(known, F.lit(HOUR))) / F.lit(HOUR)).cast("long")


def hours_between(min_event_time: int | None, max_event_time: int | None) -> int:
    """How many hours :func:`spread` may give."""
    return (
        0
        if min_event_time is None or max_event_time is None
        else min(max_event_time // HOUR - min_event_time // HOUR + 1, HOURS_KEPT)
    )


def spread(min_event_time: int | None, max_event_time: int | None, rows: int) -> Hours:
    """Rows that are on time, spread evenly from the lowest to the highest event time among them."""
    if min_event_time is None or max_event_time is None or not rows:
        return []
    last = max_event_time // HOUR
    first = max(min_event_time // HOUR, last - HOURS_KEPT + 1)

    def before(hour: int) -> int:
        time = min(max(hour * HOUR, min_event_time), max_event_time + 1)
        return rows * (time - min_event_time) // (max_event_time + 1 - min_event_time)

    found = ([hour, before(hour + 1) - before(hour), 0, 0] for hour in range(first, last + 1))
    return [counted for counted in found if counted[1]]


def together(lists: Iterable[Sequence[Sequence[int]]]) -> Hours:
    """The hours of several lists, each once."""
    found: dict[int, list[int]] = {}
    for hours in lists:
        for hour, *counts in hours:
            found[hour] = [*map(sum, zip(found.get(hour, [0] * len(counts)), counts, strict=True))]
    return [[hour, *counts] for hour, counts in sorted(found.items())]
