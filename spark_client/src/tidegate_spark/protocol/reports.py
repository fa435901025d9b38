"""Reports: columns of substreams, with parts that each fit into one call."""

from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any

SUBSTREAMS_PER_CALL = 5_000
DELAYS_PER_CALL = 100_000
"""Maximum number of delay buckets in one call, summed over all its substreams."""

Columns = dict[str, list[Any]]


def reports_of(folded: Mapping[str, list[Any]]) -> Iterator[Columns]:
    """Return the reports of a fold, one per call. Rows without an event time are only in the commit's counts."""
    columns: Columns = {"substreams": [], "max_event_times": [], "counts": [], "future_counts": [], "delays": []}
    names = ("substream", "max_event_time", "rows", "null_event_time", "future")
    delays = folded.get("delays") or [None] * len(folded["rows"])
    for substream, max_event_time, rows, null_event_time, future, delayed in zip(
        *(folded[name] for name in names), delays, strict=True
    ):
        if max_event_time is not None or future:
            values = (substream, max_event_time, rows - null_event_time - future, future, delayed or None)
            for column, value in zip(columns.values(), values, strict=True):
                column.append(value)
    if not any(columns["delays"]):
        del columns["delays"]
    return in_calls(columns)


def reports_of_max_event_times(max_event_times: Mapping[str, int]) -> Iterator[Columns]:
    """Return reports of max event times, one per call."""
    return in_calls({"substreams": list(max_event_times), "max_event_times": list(max_event_times.values())})


def in_calls(columns: Columns) -> Iterator[Columns]:
    """Split columns of equal length into parts that each fit into one call."""
    length = max(map(len, columns.values()))
    first = 0
    while first < length:
        last = min(first + SUBSTREAMS_PER_CALL, length)
        if "delays" in columns:
            sizes = accumulate(len(delayed or ()) for delayed in columns["delays"][first:last])
            last = max(first + 1, first + sum(size <= DELAYS_PER_CALL for size in sizes))
        yield {name: values[first:last] for name, values in columns.items()}
        first = last
