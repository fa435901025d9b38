"""What each limit costs and gains on flights of 2013: late rows, and the time from the end of an hour to its closing.

The rows of a batch are the flights that have landed in five minutes; the event time is the take-off. Each limit is run
through the machine, with batches as a Spark query has them, on the flights from January on, and is measured from
February on. A flight is late if its hour was closed when its batch began.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median, quantiles

from benchmarks.results import Row, Spread
from examples.flights.data import load
from examples.flights.settings import Settings
from tidegate.domain import simulate
from tidegate.domain.calendar import HOUR_MS, Frames
from tidegate.domain.config import FrameThrottle, JobConfig
from tidegate.domain.policies import LimitingLag
from tidegate.domain.simulate import RecordedBatch

MINUTE_MS = 60_000
BATCH_MS = 5 * MINUTE_MS
FIRST, MEASURED, LAST = (datetime(2013, month, 1, tzinfo=UTC) for month in (1, 2, 6))
NO_LIMIT = JobConfig(
    LimitingLag(30 * MINUTE_MS), FrameThrottle(HOUR_MS), frames=Frames("hour"), max_future_skew_ms=None
)
TIMEOUTS_MINUTES = (10, 30, 60, 120, 240, 360, 540, 1440)
SKEWS_HOURS = (1, 2, 3, 4, 6, 9, 12)
TARGETS = (0.99, 0.995, 0.997, 0.998, 0.999, 0.9995, 0.9999)


@dataclass(frozen=True)
class Result:
    """The result of one configuration: the share of late rows, and the hours from the end of an hour to its closing."""

    kind: str
    setting: str
    late: float
    median_h: float
    p95_h: float


@dataclass(frozen=True)
class Flight:
    """A flight: its destination, and the times of its take-off and its landing in milliseconds."""

    dest: str
    departed_ms: int
    landed_ms: int


def flights() -> list[Flight]:
    """Return the flights from January to May, in the order of their landing."""
    settings = Settings(FIRST, (LAST - FIRST).days, 1, 30, 0, Path())
    found = load(settings).flights
    departed, landed = (
        found[name].dt.tz_convert("UTC").dt.tz_localize(None).astype("datetime64[ms]").astype("int64")
        for name in ("departed_at", "landed_at")
    )
    return sorted(map(Flight, found.dest, map(int, departed), map(int, landed)), key=lambda flight: flight.landed_ms)


def in_batches(rows: Sequence[Flight]) -> Iterator[tuple[int, list[Flight]]]:
    """Yield the times at which batches begin, with their rows; also batches without rows."""
    at_ms, first = rows[0].landed_ms // BATCH_MS * BATCH_MS + BATCH_MS, 0
    while first < len(rows):
        last = first
        while last < len(rows) and rows[last].landed_ms <= at_ms:
            last += 1
        yield at_ms, list(rows[first:last])
        first, at_ms = last, at_ms + BATCH_MS


class Measured:
    """The late rows and the closed hours from February on."""

    def __init__(self) -> None:
        self.rows = self.late = 0
        self.hours_to_close: list[float] = []

    def add(self, at_ms: int, rows: Sequence[Flight], closed: int | None, now_closed: int | None) -> None:
        """Add a batch: ``closed`` and ``now_closed`` are the ends of the last closed hour at its begin and its end."""
        if at_ms < MEASURED.timestamp() * 1000:
            return
        self.rows += len(rows)
        if closed is None or now_closed is None:
            return
        self.late += sum(flight.departed_ms < closed for flight in rows)
        self.hours_to_close += [(at_ms - end) / HOUR_MS for end in range(closed + HOUR_MS, now_closed + 1, HOUR_MS)]

    def result(self, kind: str, setting: str) -> Result:
        """Return the result of a configuration."""
        hours = self.hours_to_close
        return Result(kind, setting, self.late / self.rows, median(hours), quantiles(hours, n=20)[-1])


def measure(batches: Sequence[tuple[int, list[Flight]]], config: JobConfig) -> Measured:
    """Run all batches under a configuration."""
    recorded, found = [], Measured()
    for at_ms, rows in batches:
        highest: dict[str, int] = {}
        for flight in rows:
            highest[flight.dest] = max(flight.departed_ms, highest.get(flight.dest, flight.departed_ms))
        recorded.append(RecordedBatch(at_ms, highest, [(flight.departed_ms, 1) for flight in rows]))
    for (at_ms, rows), step in zip(batches, simulate.in_batches(recorded, config), strict=True):
        found.add(at_ms, rows, step.late, step.watermark)
    return found


def known(batches: Sequence[tuple[int, list[Flight]]]) -> Measured:
    """Close each hour, in order, when its last flight has landed. That is known only then."""
    last: dict[int, int] = {}
    for at_ms, rows in batches:
        last |= {flight.departed_ms // HOUR_MS * HOUR_MS + HOUR_MS: at_ms for flight in rows}
    found, reached = Measured(), 0
    for end in range(min(last), max(last) + 1, HOUR_MS):
        reached = max(reached, last.get(end, end), end)
        found.add(reached, [], end - HOUR_MS, end)
    found.rows = 1
    return found


def results(show: Callable[[str], None]) -> list[Result]:
    """Measure all configurations."""
    batches = [*in_batches(flights())]
    found = [known(batches).result("known only then", "")]
    configs = [
        *(("idle timeout", f"{n} min", replace(NO_LIMIT, idle_timeout_ms=n * MINUTE_MS)) for n in TIMEOUTS_MINUTES),
        *(("max skew", f"{n} h", replace(NO_LIMIT, max_skew_ms=n * HOUR_MS)) for n in SKEWS_HOURS),
        *(("arrival target", f"{target}", replace(NO_LIMIT, arrival_target=target)) for target in TARGETS),
    ]
    for kind, setting, config in configs:
        found.append(measure(batches, config).result(kind, setting))
        show(f"{kind} {setting}: {found[-1].late:.4%} late, {found[-1].median_h:.2f} h, p95 {found[-1].p95_h:.2f} h")
    return found


def run(out: Path, rounds: int, show: Callable[[str], None]) -> list[Row]:
    """Measure all limits once, because the results do not depend on the machine; write them as JSON, too."""
    found = results(show)
    (out / "limits.json").write_text(json.dumps([asdict(each) for each in found], indent=1))
    rows = []
    for each in found:
        name = f"{each.kind} {each.setting}".strip()
        rows += [
            Row(f"{name}: late rows", Spread.of([100 * each.late]), "%"),
            Row(f"{name}: median from the end of an hour to its closing", Spread.of([each.median_h]), "h"),
            Row(f"{name}: 95 % of hours", Spread.of([each.p95_h]), "h"),
        ]
    return rows
