"""The fold of a batch: its rows, reduced to one entry per substream, and its row counts by hour of event time."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, Self

from tidegate_spark.batch import ROW_CLASSES
from tidegate_spark.errors import InvalidUsage
from tidegate_spark.protocol.reports import reports_of
from tidegate_spark.substreams import WHOLE

MAX_SUBSTREAMS = 100_000
MAX_COUNTS_BYTES = 4 * 1024 * 1024 - 1024
"""Maximum size of a commit's row counts in bytes: the limit for the body of a call, less 1 KiB for other fields."""
SUBSTREAMS_THAT_FIT = 3_000
"""Number of substreams whose counts always fit into a commit, with any names and hours."""
SLOTS_THAT_FIT = 1_000
"""Number of slots of frames that fit into a commit besides these."""
HOURS_PER_COMMIT = 30_000
"""Maximum number of hours in one commit, summed over all substreams."""

HOUR = 3_600_000
"""Length of an hour of event time, in milliseconds."""
QUARTER = HOUR // 4
"""Since 1980, each time zone differs from UTC by a multiple of this duration."""

SLOTS_PER_FRAME = 64
"""Maximum number of slots of an hour, or of a shorter frame. Rows of other frames are not counted by frame."""

FRAMES_PER_COMMIT = 40_000
"""Maximum number of slots in one commit, so that they fit beside the counts of a few substreams."""

HIGHEST = 2**53 - 1
LOWEST = -HIGHEST
"""Bounds of the event times that the coordinator can hold exactly."""

HOURS_KEPT = 168
"""Number of hours that the coordinator keeps."""

Hours = list[list[int]]
"""A list for each hour: the number of the hour since the epoch, its rows, its updated rows and its late rows."""

CLASSES = ROW_CLASSES[1:]
"""The row classes except ``on_time``."""

LateDisposition = Literal["dropped", "diverted"]
"""Whether late rows are dropped, or written to a side output."""


@dataclass(frozen=True, slots=True)
class Fold:
    """The fold of a batch: columns of equal length, with one entry per substream.

    Attributes:
        substream: Names of the substreams.
        max_event_time: Highest credible event time; None if no row has one.
        rows: Number of rows.
        updated: Number of rows that changed a closed window.
        late: Number of late rows.
        null_event_time: Number of rows without an event time.
        future: Number of rows with event times too far ahead of the clock.
        hours: Rows by hour, which the plain fold spreads evenly; empty if there are too many hours.
        all_hours: Rows of all substreams by hour, if ``hours`` is empty.
        slot: Length of a slot, see :func:`slot_of`; None if the rows are not counted by slot.
        slots: Rows of all substreams by slot, in the form of ``all_hours``, with the number of the slot.
        delays: Pairs of a delay bucket and its number of rows; empty if delays were not measured.
        late_disposition: Whether late rows are dropped or diverted.
    """

    substream: list[str]
    max_event_time: list[int | None]
    rows: list[int]
    updated: list[int]
    late: list[int]
    null_event_time: list[int]
    future: list[int]
    hours: list[Hours] = field(default_factory=list)
    all_hours: Hours = field(default_factory=list)
    slot: int | None = None
    slots: Hours = field(default_factory=list)
    delays: list[list[list[int]]] = field(default_factory=list)
    late_disposition: LateDisposition = "dropped"

    @classmethod
    def stored(cls, document: Mapping[str, Any]) -> Self:
        """Return the fold in a document of a checkpoint. Members that an earlier version wrote may be gone."""
        return cls(**{member.name: document[member.name] for member in fields(cls) if member.name in document})

    @classmethod
    def merge(cls, folds: Sequence[Self]) -> Self:
        """Return the fold of all rows of one or more folds."""
        max_event_times: dict[str, int | None] = {}
        counts: dict[str, list[int]] = {}
        hours: dict[str, list[Hours]] = {}
        for fold in folds:
            for name, of_each in zip(fold.substream, fold.hours, strict=False):
                hours.setdefault(name, []).append(of_each)
            measures = zip(*(getattr(fold, name) for name in ("rows", *CLASSES)), strict=True)
            for name, max_event_time, counted in zip(fold.substream, fold.max_event_time, measures, strict=True):
                known = [time for time in (max_event_time, max_event_times.get(name)) if time is not None]
                max_event_times[name] = max(known, default=None)
                counts[name] = [*map(sum, zip(counts.get(name, [0] * len(counted)), counted, strict=True))]
        columns = zip(("rows", *CLASSES), map(list, zip(*counts.values(), strict=True)), strict=True)
        return cls(
            late_disposition=folds[0].late_disposition,
            substream=list(max_event_times),
            max_event_time=list(max_event_times.values()),
            hours=[merge_hours(hours.get(name, [])) for name in max_event_times],
            all_hours=merge_hours(fold.all_hours for fold in folds),
            slot=folds[0].slot if len({fold.slot for fold in folds}) == 1 else None,
            slots=merge_hours(fold.slots for fold in folds),
            **dict(columns),
        )

    def reports(self) -> Iterator[dict[str, list[Any]]]:
        """Return the reports of the fold, one per call."""
        return reports_of(asdict(self))

    def reported(self) -> int:
        """Return the number of substreams in :meth:`reports`."""
        return sum(len(report["substreams"]) for report in self.reports())

    def max_event_times(self) -> dict[str, int]:
        """Return the max event time of each substream that has one."""
        times = zip(self.substream, self.max_event_time, strict=True)
        return {name: max_event_time for name, max_event_time in times if max_event_time is not None}

    def count(self, row_class: str) -> int:
        """Return the number of rows of a class: ``on_time``, or one of :data:`CLASSES`."""
        if row_class == "on_time":
            return sum(self.rows) - sum(self.count(other) for other in CLASSES)
        counts: list[int] = getattr(self, row_class)
        return sum(counts)

    def substreams_with(self, row_class: str) -> list[str]:
        """Return the sorted names of the substreams that have rows of a class in :data:`CLASSES`."""
        counts = getattr(self, row_class)
        return sorted({name for name, count in zip(self.substream, counts, strict=True) if count})

    def check_size(self) -> None:
        """Raise InvalidUsage if the counts by substream exceed the limits of a commit."""
        if self.is_too_large():
            raise InvalidUsage(
                f"The counts of this batch's {len(self.substream):,} substreams do not fit into a commit, which holds "
                f"at most {MAX_SUBSTREAMS:,} substreams and {MAX_COUNTS_BYTES:,} bytes. Choose a coarser substream, or "
                "smaller batches (maxFilesPerTrigger, maxOffsetsPerTrigger)."
            )

    def is_too_large(self) -> bool:
        """Return whether the counts by substream exceed the limits of a commit."""
        return not self._fits(self._counts_by_substream())

    def _fits(self, counts: dict[str, Any]) -> bool:
        if len(self.substream) < SUBSTREAMS_THAT_FIT and len(counts.get("frames", ())) < SLOTS_THAT_FIT:
            return True
        return len(self.substream) <= MAX_SUBSTREAMS and len(json.dumps(counts)) <= MAX_COUNTS_BYTES

    def row_counts(self, slot: int | None = None) -> dict[str, Any]:
        """Return the row counts for a commit, with as much detail as fits into one call.

        ``slot`` is that of the job's frames. The fold may be older than their declaration.
        """
        frames = self._by_frame(slot)
        if self.is_too_large():
            totals = {name: [self.count(name)] for name in ROW_CLASSES}
            return self._counts([WHOLE], totals) | {"hours": [self._merged_hours()]} | frames
        counts = self._counts_by_substream()
        if not self._fits(counts | frames):
            frames = {}
        return next(detailed for by_hour in self._by_hour() if self._fits(detailed := counts | frames | by_hour))

    def _by_frame(self, slot: int | None) -> dict[str, Any]:
        """Return the rows by frame, each with a time in the frame; an empty dict if they are not known."""
        if slot is None or self.slot is None or slot % self.slot or len(self.slots) > FRAMES_PER_COMMIT:
            return {}
        return {"frames": [[max(number * self.slot, LOWEST), *counts] for number, *counts in self.slots]}

    def _merged_hours(self) -> Hours:
        return merge_hours([self.all_hours, *self.hours])[-HOURS_KEPT:]  # the coordinator keeps no more hours

    def _by_hour(self) -> Iterator[dict[str, Any]]:
        """Yield variants of the hours for a commit, the most detailed first."""
        merged = self._merged_hours()
        if not merged:
            yield {}
            return
        first = merged[0][0]
        kept = [[entry for entry in hours if entry[0] >= first] for hours in self.hours]
        if kept and sum(map(len, kept)) <= HOURS_PER_COMMIT:
            yield {"hours": kept}
        late = [[entry for entry in hours if any(entry[2:])] for hours in kept]
        if any(late) and sum(map(len, late)) <= HOURS_PER_COMMIT:
            yield {"hours": late, "all_hours": merged}
        yield {"all_hours": merged}
        yield {}

    def _counts_by_substream(self) -> dict[str, Any]:
        columns = {name: getattr(self, name) for name in CLASSES}
        others = zip(*columns.values(), strict=True)
        on_time = [rows - sum(counts) for rows, counts in zip(self.rows, others, strict=True)]
        return self._counts(self.substream, {"on_time": on_time, **columns})

    def _counts(self, substreams: list[str], columns: dict[str, list[int]]) -> dict[str, Any]:
        return {"substreams": substreams, "late_disposition": self.late_disposition, **columns}


# Slots: a slot is in one hour, and in one frame of the job


def slot_of(config: Mapping[str, Any]) -> int | None:
    """Return the length of the slots for a job's configuration, in the unit of the event times.

    Slots start at multiples of this length. Each start of an hour of UTC, and of a frame, is the start of a slot.

    Returns:
        None if the job declares no frames, or a frame would have too many slots.
    """
    frames = config.get("frames")
    if frames is None:
        return None
    every, offset = frames["every"], frames.get("offset_ms", 0)
    if every in ("day", "month"):
        return math.gcd(HOUR if frames.get("time_zone") in (None, "UTC") else QUARTER, offset)
    length = HOUR if every == "hour" else every
    slot = math.gcd(HOUR, length, offset)
    return slot if slot * SLOTS_PER_FRAME >= min(length, HOUR) else None


def hours_of(slots: Iterable[Sequence[int]], slot: int) -> Hours:
    """Return the rows by hour from rows by slot."""
    return merge_hours([[[number * slot // HOUR, *counts] for number, *counts in slots]])


# Rows by hour of event time, in the coordinator's format


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
