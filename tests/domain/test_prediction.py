"""Predictions of when frames are complete hold as often as they say, on synthetic laws and on the flights of 2013."""

import math
from collections.abc import Callable, Iterator, Sequence
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
from tidegate.domain.frames import COMPLETIONS_KEPT, Prediction
from tidegate.domain.history import Sample
from tidegate.domain.job import Completion, JobState
from tidegate.domain.policies import LimitingLag
from tidegate.domain.prediction import Calibration, Pace, Predictor, bound_of, pace_of

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


def calibration(found: Sequence[Completion], now_ms: int | None = None, unfinished: int | None = None) -> Calibration:
    """Return how often the bounds of frames held, at the time at which the last one was finished."""
    last = found[-1]
    measured = Predictor(HOURS, found, unfinished or last.end + HOUR_MS, None, now_ms or last.finished_ms).calibration()
    assert measured is not None
    return measured


def prediction(predictor: Predictor, end: int) -> Prediction | None:
    [found] = predictor.predictions([end])
    return found


@pytest.mark.parametrize("law", [law_of_the_hour, law_of_the_weekend, law_of_outages])
def test_the_bound_holds_for_95_of_100_frames(law: Callable[[Random, int], float]) -> None:
    frames = held = 0.0
    for seed in range(5):
        of_seed = calibration(completions(law, seed, COMPLETIONS_KEPT))
        frames, held = frames + of_seed.frames, held + of_seed.frames * of_seed.held
    assert frames > 4 * COMPLETIONS_KEPT
    assert 0.93 <= held / frames <= 0.97


@pytest.mark.parametrize("law", [law_of_the_hour, law_of_the_weekend, law_of_outages])
@pytest.mark.parametrize("known", [5, 60, 900])
def test_a_prediction_says_nothing_impossible(law: Callable[[Random, int], float], known: int) -> None:
    """At any time, expected times are not in the past, and not before those of earlier frames. Overdue is for good.

    At the end of a frame, the bound is the one that the calibration uses.
    """
    found, was_overdue, bounds = completions(law, 1, known + 60), set[int](), dict[int, set[int]]()
    for at_ms in range(found[known].end, found[-1].finished_ms, 7 * MINUTE):
        finished = [each for each in found if each.finished_ms <= at_ms]
        following = found[len(finished)].end
        pace = Pace(at_ms, found[len(finished) - 1].end, 1.5)
        ends = [following + hour * HOUR_MS for hour in range(5)]
        predicted = Predictor(HOURS, finished, following, pace, at_ms).predictions(ends)
        for end, each in zip(ends, predicted, strict=True):
            assert each is not None
            assert each.expected_ms is not None
            assert each.expected_ms >= max(at_ms, end)
            assert (each.latest_ms is None) == (each.frames == 0)
            if end <= at_ms and each.latest_ms is not None:
                bounds.setdefault(end, set()).add(each.latest_ms)
            was_overdue |= {end} if each.overdue else set()
            assert each.overdue == (end in was_overdue), "a frame that was overdue is still overdue"
        expected = [each.expected_ms for each in predicted if each is not None and each.expected_ms is not None]
        assert expected == [max(expected[0], each) for each in expected]
    assert all(len(of_frame) == 1 for of_frame in bounds.values())
    assert len(bounds) > 10 or known < 19


def test_a_calibration_counts_what_is_overdue() -> None:
    """During an outage, the open frames that are later than their bound count, the others not yet."""
    found = completions(law_of_the_hour, 1, 900)
    before = calibration(found)
    last = found[-1].end
    during = calibration(found, last + 50 * HOUR_MS, last + HOUR_MS)
    assert before.frames + 44 <= during.frames <= before.frames + 49
    assert during.held < before.held - 0.04


def test_frames_that_are_finished_before_their_end_teach_nothing() -> None:
    """The event times are ahead of the clock, as in a replay."""
    found = [Completion(START + hour * HOUR_MS, START + hour * MINUTE) for hour in range(1, 500)]
    assert prediction(Predictor(HOURS, found, START + 501 * HOUR_MS, None, START), START + 501 * HOUR_MS) is None


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
    of_all, kept = calibration(found), calibration(job.frames.completions)
    assert of_all.frames > 4000
    for measured in (of_all, kept):
        assert 0.93 <= measured.held <= 0.97
    delays = sorted(each.delay_ms for each in found)
    of_noon = [each.delay_ms for each in found if each.end % DAY_MS == 12 * HOUR_MS][-28:]
    assert bound_of(sorted(of_noon)) < bound_of(delays), "the hour of the day makes the bound narrower"


def test_what_is_learned_needs_19_frames() -> None:
    end = START + 100 * HOUR_MS

    def predicted(count: int) -> Prediction | None:
        learned = [Completion(START + k * HOUR_MS, START + k * HOUR_MS + 5) for k in range(count)]
        return prediction(Predictor(HOURS, learned, end, None, end - 1), end)

    assert predicted(18) is None
    assert predicted(19) == Prediction(end + 5, end + 5, False, 19, "all_frames")


def of_days(delay_of: Callable[[int], int], days: int = 28) -> list[Completion]:
    """Return the completions of all hours of some days; the delay of an hour depends on its day."""
    ends = [START + (hour + 1) * HOUR_MS for hour in range(24 * days)]
    return [Completion(end, end + delay_of((end - 1 - START) // DAY_MS)) for end in ends]


def test_the_expected_time_follows_the_frame_until_it_is_overdue() -> None:
    """While the frame is open, only the delays that are still possible count. The bound stays."""
    learned = of_days(lambda day: (day + 1) * MINUTE)
    end = START + 28 * DAY_MS + HOUR_MS

    def at(minutes: float, pace: Pace | None = None) -> tuple[object, ...]:
        now_ms = end + int(minutes * MINUTE)
        found = prediction(Predictor(HOURS, learned, end, pace, now_ms), end)
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
    """If the first open frame is later than all delays, the others are finished after it.

    A frame that has not ended is not complete before its end.
    """
    learned = of_days(lambda day: MINUTE)
    end = START + 28 * DAY_MS + HOUR_MS
    pace = Pace(end + 10 * HOUR_MS, end - HOUR_MS, 60.0)
    predictor = Predictor(HOURS, learned, end, pace, pace.now_ms)
    past, future = predictor.predictions([end + 9 * HOUR_MS, end + 15 * HOUR_MS])
    assert past is not None
    assert (past.basis, past.expected_ms) == ("pace", pace.now_ms + 10 * MINUTE)
    assert future is not None
    assert (future.basis, future.expected_ms) == ("pace", end + 15 * HOUR_MS + MINUTE)


def test_a_frame_that_waits_for_evidence_has_no_usual_time() -> None:
    learned = of_days(lambda day: MINUTE)
    end = START + 28 * DAY_MS
    before, first = Predictor(HOURS, learned, end + HOUR_MS, None, end).predictions([end, end + HOUR_MS])
    assert before is None
    assert first is not None


def test_a_backfill_teaches_nothing() -> None:
    """The machine keeps no completions of frames that ended before it finished the first one."""
    now_ms = START + 400 * DAY_MS
    job = JobState(JobConfig(LimitingLag(0), NoThrottle(), frames=HOURS), now_ms)
    commands.create(job)
    for day in range(390):
        commands.report(job, {"a": START + day * DAY_MS}, now_ms + day)
    assert job.frames.totals["complete"] > 9_000
    assert job.frames.completions == []
    for hour in range(1, 25):
        commands.report(job, {"a": now_ms + hour * HOUR_MS}, now_ms + hour * HOUR_MS + MINUTE)
    live = [now_ms + hour * HOUR_MS for hour in range(1, 25)]
    assert [completion.end for completion in job.frames.completions] == live


def test_a_record_of_many_frames_is_learned_if_they_were_late() -> None:
    """After an outage, all frames of it count."""
    frames = Frames(MINUTE)
    job = JobState(JobConfig(LimitingLag(0), NoThrottle(), frames=frames), START)
    commands.create(job)
    for minute in (1, 2, 3, 300):
        commands.report(job, {"a": START + minute * MINUTE}, START + minute * MINUTE)
    delays = [completion.delay_ms // MINUTE for completion in job.frames.completions]
    assert delays[-297:] == list(range(296, -1, -1))


def test_the_hour_is_that_of_the_time_zone() -> None:
    """A day that starts at six in the morning is at the same hour of all days, also after a change of the clock."""
    frames = Frames("day", "America/New_York", 6 * HOUR_MS)
    first = frames.number_of(int(datetime(2013, 2, 20, 12, tzinfo=UTC).timestamp() * 1000))
    ends = [frames.start_of(first + day) for day in range(40)]
    learned = [Completion(end, end + MINUTE) for end in ends[:-1]]
    found = prediction(Predictor(frames, learned, ends[-1], None, ends[-1]), ends[-1])
    assert found is not None
    assert (found.basis, found.frames) == ("hour_of_day", 28)


@pytest.mark.parametrize("end", [2**53 - 1, -(2**53) + HOUR_MS, 253_402_300_800_000])
@pytest.mark.parametrize(
    "frames", [Frames("day", "America/New_York"), Frames("month"), Frames("hour"), Frames(7 * DAY_MS)]
)
def test_a_frame_far_from_all_times_has_a_prediction(frames: Frames, end: int) -> None:
    learned = [Completion(START + k * DAY_MS, START + k * DAY_MS + 5) for k in range(40)]
    predictor = Predictor(
        frames, learned, START + 41 * DAY_MS, Pace(START + 40 * DAY_MS, START, 1.0), START + 40 * DAY_MS
    )
    found = prediction(predictor, end)
    assert (found is None) == (end < START)
    assert predictor.calibration() is not None


STEADY = [(minute * MINUTE, 2 * minute * MINUTE) for minute in range(0, 60, 5)]


@pytest.mark.parametrize(
    ("samples", "watermark", "expected"),
    [
        ([], 120 * MINUTE, None),
        (STEADY, 120 * MINUTE, 2.0),
        ([(0, None), *STEADY[1:]], 120 * MINUTE, 2.0),
        ([(at - HOUR_MS, value - 2 * HOUR_MS) for at, value in STEADY] + STEADY, 120 * MINUTE, 2.0),
        (STEADY, None, None),
        (STEADY[:9], STEADY[8][1], None),
        ([(0, 0), (30 * MINUTE, 1000 * HOUR_MS), (59 * MINUTE, 1000 * HOUR_MS + 5)], 1000 * HOUR_MS + 10, None),
        ([(0, 100)], 100, None),
    ],
    ids=["new", "steady", "from its first", "the last hour only", "no watermark", "stopped", "a jump", "stands"],
)
def test_the_pace_is_that_of_the_last_hour(
    samples: list[tuple[int, int | None]], watermark: int | None, expected: float | None
) -> None:
    found = pace_of([Sample(at, value, None, "", "") for at, value in samples], HOUR_MS, watermark, watermark)
    assert (None if found is None else found.rate) == expected
