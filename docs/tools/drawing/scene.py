"""Scenes: runs of the Python machine with scripted reports, and the watermarks at each processing time."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidegate.domain import commands
from tidegate.domain.config import JobConfig
from tidegate.domain.evaluate import held_by
from tidegate.domain.job import JobState
from tidegate.domain.simulate import new_job
from tidegate.domain.values import DIRECT, SubstreamKey, above

Act = Callable[[JobState, int], Any]
Line = list[tuple[int, int | None]]


@dataclass(frozen=True)
class Event:
    """An event of a substream.

    Attributes:
        substream: Name of the substream.
        at: Processing time of the report.
        event_time: Event time.
        fate: Row class: ``on time``, ``late`` (below the coalesced watermark at that time) or ``future`` (ignored).
    """

    substream: str
    at: int
    event_time: int
    fate: str


@dataclass(frozen=True)
class Window:
    """A window ``[begin, end)`` of event times, and the processing time at which it closes (None: it stays open)."""

    begin: int
    end: int
    closes: int | None


@dataclass
class Seen:
    """The result of a scene. A line has a pair of processing time and value for each time; the value may be None.

    ``holders`` and ``idle`` are lines, too: the substream that holds the watermark, and whether a substream is idle.
    """

    title: str
    events: list[Event] = field(default_factory=list)
    max_event_times: dict[str, Line] = field(default_factory=dict)
    watermarks: dict[str, Line] = field(default_factory=dict)
    coalesced_watermark: Line = field(default_factory=list)
    emitted: Line = field(default_factory=list)
    marks: list[tuple[int, str]] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)
    holders: list[tuple[int, str | None]] = field(default_factory=list)
    idle: dict[str, list[tuple[int, bool]]] = field(default_factory=dict)

    def digest(self) -> str:
        """Return the whole result as text. A test compares the hash of this text with the hash in the figure."""
        lines = (self.max_event_times, self.watermarks, self.coalesced_watermark, self.emitted)
        shown = (self.title, self.events, *lines, self.marks)
        return repr((*shown, self.windows) if self.windows else shown)


@dataclass(frozen=True)
class Scene:
    """The script of a run of a job, with a sweep at each processing time.

    Attributes:
        title: Title of the figure.
        config: Configuration of the job.
        events: For each substream, pairs of processing time and event time.
        end: Last processing time.
        declared: Declared substreams. Default: all substreams that have events.
        acts: Further commands, by processing time.
        marks: Texts in the figure, each with its processing time.
        window_size: Size of the windows in the figure; 0 draws none.
        windows_end: End of the last window.
    """

    title: str
    config: JobConfig
    events: Mapping[str, Sequence[tuple[int, int]]]
    end: int
    declared: Sequence[str] = ()
    acts: Mapping[int, Act] = field(default_factory=dict)
    marks: Sequence[tuple[int, str]] = ()
    window_size: int = 0
    windows_end: int = 0

    def play(self) -> Seen:
        job = new_job(self.config, 0)
        commands.declare(job, DIRECT, list(self.declared or self.events), 0)
        seen = Seen(self.title, marks=list(self.marks))
        for now in range(self.end + 1):
            commands.sweep(job, now)
            if now in self.acts:
                self.acts[now](job, now)
            for name, events in self.events.items():
                for at, time in events:
                    if at == now:
                        seen.events.append(Event(name, now, time, _fate(job, now, time)))
                        commands.report(job, {name: time}, now)
            self._look(job, now, seen)
        if self.window_size:
            seen.windows = [self._window(begin, seen) for begin in range(0, self.windows_end, self.window_size)]
        return seen

    def _window(self, begin: int, seen: Seen) -> Window:
        end = begin + self.window_size
        return Window(begin, end, next((at for at, mark in seen.emitted if mark is not None and mark >= end), None))

    def _look(self, job: JobState, now: int, seen: Seen) -> None:
        for key, substream in job.substreams.items():
            name = _label(key)
            seen.max_event_times.setdefault(name, []).append((now, substream.max_event_time))
            seen.watermarks.setdefault(name, []).append((now, substream.watermark))
            seen.idle.setdefault(name, []).append((now, substream.idle))
        seen.coalesced_watermark.append((now, job.coalesced_watermark))
        seen.emitted.append((now, job.watermark))
        holder = held_by(job)
        seen.holders.append((now, holder.substream if holder else None))


def _fate(job: JobState, now: int, event_time: int) -> str:
    future_skew = job.config.max_future_skew_ms
    if future_skew is not None and event_time > now + future_skew:
        return "future"
    return "late" if above(job.coalesced_watermark, event_time) else "on time"


def _label(key: SubstreamKey) -> str:
    query, name = key
    return f"{query} {name}".strip()
