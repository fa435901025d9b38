"""Predictions of when frames are complete hold as often as they say, on synthetic laws and on the flights of 2013."""

import math
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from random import Random

import pytest

from examples.flights.data import load
from examples.flights.settings import Settings
from tidegate.domain import commands
from tidegate.domain.calendar import DAY_MS, HOUR_MS, Frames
from tidegate.domain.config import JobConfig, NoThrottle
from tidegate.domain.frames import COMPLETIONS_KEPT
from tidegate.domain.history import Sample
from tidegate.domain.job import Completion, JobState
from tidegate.domain.policies import LimitingLag
from tidegate.domain.prediction import (
    Pace,
    Predictor,
    bound_of,
    calibration_of,
    observed_live,
    pace_of,
)

HOURS = Frames("hour")
MINUTE = 60_000
START = 2000 * DAY_MS


def law_of_the_hour(random: Random, hour: int) -> float:
    """Delays depend on the hour of the day."""
    return random.lognormvariate(math.log(20 + 5 * (hour % 24)), 0.4)


def law_of_the_weekend(random: Random, hour: int) -> float:
    """On two days of the week, delays are three times as long."""
    return random.lognormvariate(math.log(30), 0.5) * (3 if hour // 24 % 7 in (2, 3) else 1)


def law_of_outages(random: Random, hour: int) -> float:
    """In one hour of fifty, the input stops for hours: a heavy tail."""
    return random.uniform(5, 15) + (random.paretovariate(1.2) * 60 if random.random() < 0.02 else 0)


def completions(law: Callable[[Random, int], float], seed: int, count: int) -> list[Completion]:
    """Return the completions of hours whose delays follow a law. Frames are finished in order."""
    random, found, reached = Random(seed), [], 0  # noqa: S311 - the same each time
    for hour in range(count):
        end = START + (hour + 1) * HOUR_MS
        reached = max(reached, end + int(law(random, hour) * MINUTE))
        found.append(Completion(end, reached))
    return found


@pytest.mark.parametrize("law", [law_of_the_hour, law_of_the_weekend, law_of_outages])
def test_the_bound_holds_for_95_of_100_frames(law: Callable[[Random, int], float]) -> None:
    frames = held = 0.0
    for seed in range(5):
        of_seed = calibration_of(HOURS, completions(law, seed, COMPLETIONS_KEPT))
        assert of_seed is not None
        frames, held = frames + of_seed.frames, held + of_seed.frames * of_seed.held
    assert frames > 4 * COMPLETIONS_KEPT
    assert 0.93 <= held / frames <= 0.97


def reports_of_flights(days: int, interval: int, tmp_path: Path) -> Iterator[tuple[int, dict[str, int]]]:
    """Yield the landings of each interval: its end, and for each destination the latest take-off."""
    flights = load(Settings(datetime(2013, 1, 1, tzinfo=UTC), days, 12, 30, 0, tmp_path)).flights
    landed = flights["landed_at"].map(lambda at: (int(at.timestamp() * 1000) // interval + 1) * interval)
    departed = flights["departed_at"].map(lambda at: int(at.timestamp() * 1000))
    latest = departed.groupby([landed, flights["dest"]]).max()
    found = [(int(at), str(dest), int(time)) for (at, dest), time in zip(latest.index, latest, strict=True)]
    for at, of_interval in groupby(found, key=itemgetter(0)):
        yield at, {dest: time for _, dest, time in of_interval}


@pytest.mark.slow
def test_the_bound_holds_on_held_back_weeks_of_the_flights(tmp_path: Path) -> None:
    """Six months, with an idle timeout of six hours. Each week is predicted from the frames before it."""
    config = JobConfig(LimitingLag(30 * MINUTE), NoThrottle(), idle_timeout_ms=6 * HOUR_MS, frames=HOURS)
    job, found = None, list[Completion]()
    for at, latest in reports_of_flights(182, 3 * MINUTE, tmp_path):
        if job is None:
            job = JobState(config, at)
            commands.create(job)
        commands.report(job, latest, at)
        known = found[-1].end if found else 0
        found += [each for each in job.frames.completions[-100:] if each.end > known]
    assert job is not None
    assert found[-COMPLETIONS_KEPT:] == job.frames.completions
    of_all, kept = (calibration_of(HOURS, observed_live(each)) for each in (found, job.frames.completions))
    assert of_all is not None
    assert kept is not None
    assert of_all.frames > 4000
    for calibration in (of_all, kept):
        assert 0.93 <= calibration.held <= 0.97
    delays = sorted(each.delay_ms for each in found)
    of_noon = [each.delay_ms for each in found if each.end % DAY_MS == 12 * HOUR_MS][-28:]
    assert bound_of(sorted(of_noon)) < bound_of(delays), "the hour of the day makes the bound narrower"


def test_what_is_learned_needs_19_frames() -> None:
    def prediction(count: int) -> object:
        learned = [
            Completion(START, START),
            *(Completion(START + k * HOUR_MS, START + k * HOUR_MS + 5) for k in range(1, count + 1)),
        ]
        end = START + 100 * HOUR_MS
        found = Predictor(HOURS, learned, end, None, end - 1).predict(end)
        return found and (found.expected_ms, found.latest_ms, found.frames, found.basis, found.overdue)

    end = START + 100 * HOUR_MS
    assert prediction(18) is None
    assert prediction(19) == (end + 5, end + 5, 19, "all_frames", False)


def of_days(delay_of: Callable[[int], int], days: int = 28) -> list[Completion]:
    """Return the completions of all hours of some days; the delay of an hour depends on its day."""
    ends = [START + (hour + 1) * HOUR_MS for hour in range(24 * days)]
    return [Completion(START, START), *(Completion(end, end + delay_of((end - 1 - START) // DAY_MS)) for end in ends)]


def test_the_expected_time_follows_the_frame_until_it_is_overdue() -> None:
    """While the frame is open, only the delays that are still possible count. The bound stays."""
    learned = of_days(lambda day: (day + 1) * MINUTE)
    end = START + 28 * DAY_MS + HOUR_MS

    def at(minutes: float, pace: Pace | None = None) -> tuple[object, ...]:
        now_ms = end + int(minutes * MINUTE)
        found = Predictor(HOURS, learned, end, pace, now_ms).predict(end)
        assert found is not None
        assert (found.latest_ms, found.frames) == (end + 28 * MINUTE, 28)
        expected = None if found.expected_ms is None else (found.expected_ms - end) / MINUTE
        return expected, found.overdue, found.basis

    assert at(-60) == (15, False, "hour_of_day")
    assert at(0) == (15, False, "hour_of_day")
    assert at(20) == (25, False, "hour_of_day")
    assert at(27.5) == (28, False, "hour_of_day")
    assert at(29) == (None, True, "hour_of_day")
    pace = Pace(end + 29 * MINUTE, end - 10 * MINUTE, 2.0)
    assert at(29, pace) == (34, True, "pace")


def test_a_job_that_catches_up_follows_its_pace() -> None:
    """If the first open frame is later than all delays, the others are finished after it."""
    learned = of_days(lambda day: MINUTE)
    end = START + 28 * DAY_MS + HOUR_MS
    pace = Pace(end + 10 * HOUR_MS, end - HOUR_MS, 60.0)
    predictor = Predictor(HOURS, learned, end, pace, pace.now_ms)
    later = predictor.predict(end + 9 * HOUR_MS)
    assert later is not None
    assert (later.basis, later.expected_ms) == ("pace", pace.now_ms + 10 * MINUTE)


def test_a_frame_that_waits_for_evidence_has_no_usual_time() -> None:
    learned = of_days(lambda day: MINUTE)
    end = START + 28 * DAY_MS
    predictor = Predictor(HOURS, learned, end + HOUR_MS, None, end)
    assert predictor.predict(end) is None
    assert predictor.predict(end + HOUR_MS) is not None


def test_a_backfill_teaches_nothing() -> None:
    """Its frames ended before the job began: their delays are years."""
    now_ms = START + 400 * DAY_MS
    backfill = [Completion(START + hour * HOUR_MS, now_ms + hour) for hour in range(1, 500)]
    assert Predictor(HOURS, backfill, None, None, now_ms).predict(now_ms) is None
    live = [Completion(now_ms + hour * HOUR_MS, now_ms + hour * HOUR_MS + MINUTE) for hour in range(1, 25)]
    end = now_ms + 25 * HOUR_MS
    found = Predictor(HOURS, [*backfill, *live], end, None, end).predict(end)
    assert found is not None
    assert (found.frames, found.latest_ms) == (24, end + MINUTE)


def test_the_hour_is_that_of_the_time_zone() -> None:
    """A day that starts at six in the morning is at the same hour of all days, also after a change of the clock."""
    frames = Frames("day", "America/New_York", 6 * HOUR_MS)
    first = frames.number_of(int(datetime(2013, 2, 20, 12, tzinfo=UTC).timestamp() * 1000))
    ends = [frames.start_of(first + day) for day in range(40)]
    learned = [Completion(ends[0], ends[0]), *(Completion(end, end + MINUTE) for end in ends[1:-1])]
    found = Predictor(frames, learned, ends[-1], None, ends[-1]).predict(ends[-1])
    assert found is not None
    assert (found.basis, found.frames) == ("hour_of_day", 28)


@pytest.mark.parametrize(
    ("samples", "watermark", "expected"),
    [
        ([], 100, None),
        ([(0, None), (10, 0)], 100, 10.0),
        ([(0, 0)], 100, 5.0),
        ([(0, 100)], 100, None),
        ([(20, 0)], 100, None),
        ([(0, 0)], None, None),
        ([(-HOUR_MS - 60, -200), (-HOUR_MS, 100), (10, 100)], 100, None),
        ([(-9 * HOUR_MS, 100 - 2 * HOUR_MS), (10, 100)], 100, 2.0),
    ],
)
def test_the_pace_is_that_of_the_last_hour(
    samples: list[tuple[int, int | None]], watermark: int | None, expected: float | None
) -> None:
    found = pace_of([Sample(at, value, None, "", "") for at, value in samples], 20, watermark, watermark)
    assert (None if found is None else found.rate) == expected
