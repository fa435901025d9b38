"""The parts of the benchmark with Flink that need no Flink: its measures, and the runs of the coordinator."""

from datetime import timedelta
from pathlib import Path

import pytest

from benchmarks.flink.batches import Case, batches_of, measure
from benchmarks.flink.clocked import ClockedCoordinator
from benchmarks.flink.peer import outcomes
from benchmarks.flink.replay import HOUR_MS, MINUTE_MS, Flight, Outcome, Replay, earliest
from tidegate_spark import limiting_lag

START_MS = 1_356_998_400_000


def at(hours: float) -> int:
    return START_MS + round(hours * HOUR_MS)


def flight(destination: str, departed: float, landed: float) -> Flight:
    return Flight(destination, at(departed), at(landed))


REPLAY = Replay(
    [
        flight("HNL", 0.2, 0.4),
        flight("BOS", 0.2, 0.8),
        flight("BOS", 2.2, 2.8),
        flight("HNL", 0.4, 3.5),
    ],
    START_MS,
    at(5),
)


def test_an_hour_closes_with_its_last_landing_but_not_before_an_earlier_hour() -> None:
    assert earliest(REPLAY) == Outcome(0, {at(1): at(3.5), at(3): at(3.5)})
    assert earliest(REPLAY.until(at(3))) == Outcome(0, {at(1): at(1), at(3): at(3)})


def test_delays_are_hours_from_the_end_of_the_hour() -> None:
    outcome = Outcome(0, {at(hour): at(hour + hour / 10) for hour in range(1, 11)})
    assert outcome.delays_h == pytest.approx([hour / 10 for hour in range(1, 11)])
    assert outcome.median_h == pytest.approx(0.55)
    assert outcome.p90_h == pytest.approx(0.9)


def test_the_output_of_flink_is_read_by_case() -> None:
    lines = [
        f"window\t0\t{at(1)}\t{at(2)}\t3\n",
        "lost\t1\n",
        f"window\t1\t{at(3)}\t{at(5) + 7}\t3\n",
        f"window\t0\t{at(3)}\t{at(4)}\t1\n",
    ]
    # Flink closes the last windows shortly after the end of its input, which is the end of the replay.
    assert outcomes(lines, REPLAY, 2) == [Outcome(0, {at(1): at(2), at(3): at(4)}), Outcome(1, {at(3): at(5)})]
    with pytest.raises(RuntimeError, match="case 1: expected 4 rows, found 3 in windows and 0 lost"):
        outcomes(lines[:1] + lines[2:], REPLAY, 2)


def test_an_idle_timeout_closes_an_hour_and_loses_the_row_that_lands_later(tmp_path: Path) -> None:
    hour = timedelta(hours=1)
    cases = [
        Case("idle", 60, limiting_lag(hour / 2, frame=hour, idle_timeout=2 * hour)),
        Case("never idle", 60, limiting_lag(hour / 2, frame=hour)),
    ]
    with ClockedCoordinator(tmp_path, START_MS) as coordinator:
        idle, never = measure(coordinator, REPLAY, cases, print)
    assert idle == Outcome(1, {at(1): at(3), at(3): at(5)})
    assert never == Outcome(0, {at(1): at(5), at(3): at(5)})


def test_a_landing_belongs_to_the_batch_that_ends_after_it() -> None:
    first, second = flight("BOS", 0, 0.2), flight("BOS", 0, 0.25)
    assert batches_of(Replay([first, second], START_MS, at(1)), 15 * MINUTE_MS) == {
        at(0.25): [first],
        at(0.5): [second],
    }
