"""A scene: a job in the domain, what is reported to it and when, and what could be seen of it at each moment."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidegate.domain import commands
from tidegate.domain.config import JobConfig
from tidegate.domain.names import DIRECT, SubstreamKey
from tidegate.domain.numbers import above
from tidegate.domain.simulate import new_job
from tidegate.domain.state import JobState

Act = Callable[[JobState, int], Any]
Line = list[tuple[int, int | None]]


@dataclass(frozen=True)
class Event:
    """One event of a substream. ``fate``: on time; late, below the watermark of its moment; or future, and ignored."""

    substream: str
    at: int
    event_time: int
    fate: str


@dataclass
class Seen:
    """A scene that has been played: lines are (processing time, value) at every moment, None being no watermark."""

    title: str
    events: list[Event] = field(default_factory=list)
    max_event_times: dict[str, Line] = field(default_factory=dict)
    watermarks: dict[str, Line] = field(default_factory=dict)
    coalesced_watermark: Line = field(default_factory=list)
    emitted: Line = field(default_factory=list)
    marks: list[tuple[int, str]] = field(default_factory=list)

    def digest(self) -> str:
        """All of it as text, by which a drawing can be told to be of another run."""
        return repr(
            (
                self.title,
                self.events,
                self.max_event_times,
                self.watermarks,
                self.coalesced_watermark,
                self.emitted,
                self.marks,
            )
        )


@dataclass(frozen=True)
class Scene:
    """Events by substream as (processing time, event time); further acts by time; a sweep at every moment.

    ``marks``: what to write at which moment.
    """

    title: str
    config: JobConfig
    events: Mapping[str, Sequence[tuple[int, int]]]
    end: int
    declared: Sequence[str] = ()
    acts: Mapping[int, Act] = field(default_factory=dict)
    marks: Sequence[tuple[int, str]] = ()

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
        return seen

    def _look(self, job: JobState, now: int, seen: Seen) -> None:
        for key, substream in job.substreams.items():
            name = _label(key)
            seen.max_event_times.setdefault(name, []).append((now, substream.max_event_time))
            seen.watermarks.setdefault(name, []).append((now, substream.watermark))
        seen.coalesced_watermark.append((now, job.coalesced_watermark))
        seen.emitted.append((now, job.watermark))


def _fate(job: JobState, now: int, event_time: int) -> str:
    skew = job.config.max_future_skew_ms
    if skew is not None and event_time > now + skew:
        return "future"
    return "late" if above(job.coalesced_watermark, event_time) else "on time"


def _label(key: SubstreamKey) -> str:
    query, name = key
    return f"{query} {name}".strip()
