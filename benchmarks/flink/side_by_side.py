"""Flink and the coordinator on seven days of flights: lost rows, and the time until an hour closes.

Event time is the take-off, and a flight is observed at its landing. Windows have a size of an hour, and the lag is 30
minutes. All times are times of the data. docs/explanation/performance.md has the results and their limits.
"""

import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from benchmarks.flink import batches, peer, spark_batches
from benchmarks.flink.batches import Case
from benchmarks.flink.clocked import ClockedCoordinator
from benchmarks.flink.replay import HOUR_MS, Outcome, Replay, demo_settings, earliest, load
from benchmarks.results import Row, Spread, ratios
from tidegate_spark import limiting_lag, limiting_timestamp_and_wall_clock_lag

MS, MINUTE, HOUR = timedelta(milliseconds=1), timedelta(minutes=1), timedelta(hours=1)
LAG = 30 * MINUTE
LONGEST_FLIGHT = 11 * HOUR
MAX_ROUNDS = 2
"""Rounds of Flink. The coordinator runs once, because its result does not depend on the load of the machine."""

EQUAL = 1.02
"""Highest ratio of two delays that counts as equal."""
EARLIEST = "earliest possible without lost rows"
IDLE_6, IDLE_3, NEVER = "idle 6 h", "idle 3 h", "no idle timeout"
BEST = "idle 6 h, retention 10 h"
FASTER = "idle 3 h, retention 5.5 h"
FASTER_CONFIG = limiting_lag(LAG, frame=HOUR, idle_timeout=3 * HOUR, max_retention=5.5 * HOUR)
FLINK = [
    peer.Case(IDLE_6, idle_ms=6 * HOUR_MS),
    peer.Case(IDLE_3, idle_ms=3 * HOUR_MS),
    peer.Case(NEVER),
    peer.Case("one watermark for all destinations", per_destination=False),
    peer.Case("own generator, 11 h behind the clock", wall_clock_lag_ms=LONGEST_FLIGHT // MS),
]


def coordinator_cases() -> list[Case]:
    """Return the cases of the coordinator: the main ones at each interval, and more at the shortest."""
    idle_6 = limiting_lag(LAG, frame=HOUR, idle_timeout=6 * HOUR)
    retained = limiting_lag(LAG, frame=HOUR, idle_timeout=6 * HOUR, max_retention=10 * HOUR)
    longest, *_, shortest = batches.INTERVALS
    found = [Case(NEVER, longest, limiting_lag(LAG, frame=HOUR))]
    for interval in batches.INTERVALS:
        found += [Case(IDLE_6, interval, idle_6), Case(BEST, interval, retained)]
    # A flight waits for the end of its batch, so the lag behind the clock covers the flight and the interval.
    behind_clock = limiting_timestamp_and_wall_clock_lag(LAG, LONGEST_FLIGHT + shortest * MINUTE, frame=HOUR)
    others = {
        f"11 h and {shortest} min behind the clock": behind_clock,
        "idle 6 h, retention 9.5 h": limiting_lag(LAG, frame=HOUR, idle_timeout=6 * HOUR, max_retention=9.5 * HOUR),
        IDLE_3: limiting_lag(LAG, frame=HOUR, idle_timeout=3 * HOUR),
        FASTER: FASTER_CONFIG,
    }
    return found + [Case(name, shortest, config) for name, config in others.items()]


def table(found: list[tuple[str, list[Outcome]]]) -> str:
    """Return the outcomes of all rounds as text: lost rows, and the median and the 90th percentile of the delays."""
    width = max(len(name) for name, _ in found)
    lines = [f"{'':<{width}}  {'lost':>12}  {'hours until close: median':>27}  {'90th percentile':>22}"]
    for name, outcomes in found:
        lost = sorted(outcome.lost for outcome in outcomes)
        spread = f"{lost[0]}" if lost[0] == lost[-1] else f"{lost[0]} .. {lost[-1]}"
        median, p90 = (
            Spread.of(getattr(outcome, measure) for outcome in outcomes) for measure in ("median_h", "p90_h")
        )
        lines.append(f"{name:<{width}}  {spread:>12}  {median!s:>27}  {p90!s:>22}")
    return "\n".join(lines)


def measure_flink(out: Path, replay: Replay, rounds: int, show: Callable[[str], None]) -> list[list[Outcome]]:
    """Run Flink's cases in each round, and return the outcomes of each case."""
    flink = peer.Flink(out, replay, LAG // MS)
    found = []
    for number in range(1, rounds + 1):
        show(f"  Flink: round {number}/{rounds}, {peer.REPLAY_S} s")
        found.append(flink.measure(FLINK))
    return [list(outcomes) for outcomes in zip(*found, strict=True)]


def run(out: Path, rounds: int, show: Callable[[str], None]) -> list[Row]:
    """Run Flink, then the coordinator, then the check with Spark."""
    out = (out / f"flink-{time.time_ns()}").absolute()
    out.mkdir(parents=True)
    replay = load(demo_settings(out))
    flink = dict(zip(FLINK, measure_flink(out, replay, min(rounds, MAX_ROUNDS), show), strict=True))
    cases = coordinator_cases()
    with ClockedCoordinator(out / "coordinator", replay.start_ms) as coordinator:
        ours = dict(zip(cases, batches.measure(coordinator, replay, cases, show), strict=True))
    found = [(EARLIEST, [earliest(replay)])]
    found += [(f"Flink: {case.name}", outcomes) for case, outcomes in flink.items()]
    found += [(f"coordinator, {case.minutes} min: {case.name}", [outcome]) for case, outcome in ours.items()]
    show("  Spark: the first day in batches of an hour")
    spark_batches.check(out, replay, Case(FASTER, max(batches.INTERVALS), FASTER_CONFIG))
    show("  Spark: the rows lost and the times of all closings are those of the same calls without Spark")
    show("\n" + table(found))
    rows = []
    for name, outcomes in found:
        rows.append(Row(f"{name}: lost", Spread.of(outcome.lost for outcome in outcomes), "rows"))
        rows.append(Row(f"{name}: median", Spread.of(outcome.median_h for outcome in outcomes), "h"))
    return rows + _targets(
        {case.name: outcomes for case, outcomes in flink.items()},
        {case.name: outcome for case, outcome in ours.items() if case.minutes == min(batches.INTERVALS)},
    )


def _targets(flink: dict[str, list[Outcome]], ours: dict[str, Outcome]) -> list[Row]:
    """Return the rows with targets: no more rows lost than with Flink, and hours that close no later."""
    rows = []
    for case, other in (IDLE_6, IDLE_6), (BEST, IDLE_6), (FASTER, IDLE_3):
        names = f"coordinator ({case}) / Flink ({other})"
        theirs = [outcome.median_h for outcome in flink[other]]
        # With equal limits, the times differ by the interval of the batches and the noise of the machine.
        at_most = EQUAL if case == other else 1
        rows.append(Row(f"median: {names}", ratios([ours[case].median_h] * len(theirs), theirs), at_most=at_most))
        more = Spread.of(ours[case].lost - outcome.lost for outcome in flink[other])
        rows.append(Row(f"lost: {names}, difference", more, "rows", at_most=0))
    return rows
