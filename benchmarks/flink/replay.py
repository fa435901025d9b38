"""The flights of a replay, and the measures of a run: lost rows, and the delay with which hours close."""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from examples.flights import data
from examples.flights.settings import Settings

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS


@dataclass(frozen=True, slots=True)
class Flight:
    """A flight; times are epoch milliseconds."""

    destination: str
    departed_ms: int
    landed_ms: int

    @property
    def window_end_ms(self) -> int:
        """End of the hour of the take-off."""
        return (self.departed_ms // HOUR_MS + 1) * HOUR_MS


@dataclass(frozen=True, slots=True)
class Replay:
    """The flights that landed in ``[start_ms, end_ms)``, in the order of their landings."""

    flights: list[Flight]
    start_ms: int
    end_ms: int

    @property
    def destinations(self) -> list[str]:
        """The destinations, sorted."""
        return sorted({flight.destination for flight in self.flights})

    def until(self, end_ms: int) -> "Replay":
        """Return the part of the replay before a time."""
        return Replay([flight for flight in self.flights if flight.landed_ms < end_ms], self.start_ms, end_ms)

    @property
    def window_ends_ms(self) -> list[int]:
        """The ends of the hours that have take-offs, sorted."""
        return sorted({flight.window_end_ms for flight in self.flights})


def demo_settings(out: Path) -> Settings:
    """Return the settings of the demo's default run, with its output in ``out``."""
    first_day = datetime(2013, 1, 1, tzinfo=UTC)
    return Settings(first_day, days=7, batch_hours=1, lag_minutes=30, idle_batches=0, out=out)


def load(settings: Settings) -> Replay:
    """Return the flights of a run of the demo."""
    flights = data.load(settings).flights
    times = [flights[name].dt.as_unit("ms").astype("int64").tolist() for name in ("departed_at", "landed_at")]
    rows = [Flight(*row) for row in zip(flights["dest"], *times, strict=True)]
    return Replay(rows, _ms(settings.start), _ms(settings.end))


def _ms(time: datetime) -> int:
    return round(1000 * time.timestamp())


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one run.

    Attributes:
        lost: Number of rows that came after their hour had closed.
        closed_ms: Time of the data at which each hour closed, by the end of the hour. An hour that was open at the end
            of the replay closed at the end.
    """

    lost: int
    closed_ms: Mapping[int, int]

    @property
    def delays_h(self) -> list[float]:
        """Hours from the end of each hour until it closed, sorted."""
        return sorted((closed - end) / HOUR_MS for end, closed in self.closed_ms.items())

    @property
    def median_h(self) -> float:
        """Median of the delays."""
        return statistics.median(self.delays_h)

    @property
    def p90_h(self) -> float:
        """Delay within which nine of ten hours closed."""
        delays = self.delays_h
        return delays[math.ceil(0.9 * len(delays)) - 1]


def earliest(replay: Replay) -> Outcome:
    """Return the outcome of a watermark that knows the future: each hour closes with the last landing of its rows.

    No run without lost rows closes an hour earlier, because hours close in order.
    """
    last_ms: dict[int, int] = {}
    for flight in replay.flights:
        last_ms[flight.window_end_ms] = flight.landed_ms
    closed_ms, latest_ms = {}, replay.start_ms
    for end_ms in replay.window_ends_ms:
        latest_ms = max(latest_ms, last_ms[end_ms], end_ms)
        closed_ms[end_ms] = latest_ms
    return Outcome(0, closed_ms)
