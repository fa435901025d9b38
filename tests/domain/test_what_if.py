"""What limits would do: the predictions from the recorded past, compared with what the limits then do."""

from dataclasses import replace

from tests.domain.batches import FRAME, HIGHEST_MS, LEARNING, read
from tests.support.machine import JobMachine
from tidegate.domain.limits import arrival_delay, proven_until
from tidegate.domain.what_if import FrameDelays, WhatIfArrivals, what_if_arrivals, what_if_skew

WITHOUT_TARGET = replace(LEARNING, arrival_target=None)


def silent_at_times(config: object = WITHOUT_TARGET, batches: int = 120) -> JobMachine:
    """Return a job whose slow substream sends nothing for nine of ten batches, and then rows of up to 25 ms before."""
    job = JobMachine(config, 1000)  # type: ignore[arg-type]
    for number in range(batches):
        now_ms = 1000 + FRAME * number
        slow = {"slow": [now_ms - 25, now_ms - 15]} if number % 10 == 0 else {}
        read(job, number, {"fast": now_ms, **slow}, now_ms)
    return job


def asked(job: JobMachine, target: float) -> WhatIfArrivals:
    found = what_if_arrivals(job.arrivals, proven_until(job), job.config, target, job.frames.completions)
    assert found is not None
    return found


def test_a_target_is_predicted_from_a_job_that_has_none() -> None:
    job = silent_at_times()
    assert job.arrivals.learned is None
    found = asked(job, 0.9)
    with_target = silent_at_times(LEARNING)
    reached = arrival_delay(with_target)
    assert reached is not None
    assert found.delay_ms == reached.delay_ms
    assert found.late is not None
    assert found.late <= 0.1
    assert found.recorded is not None
    assert found.expected is not None
    later = FrameDelays.of([each.delay_ms for each in with_target.frames.completions[-50:]])
    assert found.recorded.p95_ms > 50, "each frame waits for the slow substream"
    # A frame is complete when a batch proves it, which may be a batch later.
    assert 0 <= later.p95_ms - found.expected.p95_ms <= FRAME


def test_too_few_rows_predict_nothing() -> None:
    job = silent_at_times(batches=50)
    found = asked(job, 0.9999)
    assert (found.delay_ms, found.late, found.expected) == (None, None, None)
    assert found.measured < found.needed


def test_rows_later_than_the_highest_delay_are_late() -> None:
    job = silent_at_times()
    for number in range(200, 220):
        now_ms = job.now_ms + FRAME
        read(job, number, {"fast": now_ms, "slow": [now_ms - 3 * HIGHEST_MS] * 9}, now_ms)
    late = asked(job, 0.5).late
    assert late is not None and late > 0.4
    job.configure(LEARNING, job.now_ms)
    assert asked(job, 0.5).late == late, "a new target measures nothing again"
    for number in range(220, 420):
        now_ms = job.now_ms + FRAME
        read(job, number, {"fast": [now_ms] * 9}, now_ms)
    late = asked(job, 0.5).late
    assert late is not None and late < 0.05, "old data that was read again decays"


def test_a_longer_delay_than_that_in_force_and_a_job_without_proof_expect_nothing() -> None:
    """Frames that were complete at a delay say nothing about a longer one. Without proof, a target does nothing."""
    job = silent_at_times(replace(LEARNING, arrival_target=0.5))
    assert asked(job, 0.5).expected is not None
    assert asked(job, 0.99).expected is None
    job = silent_at_times()
    job.report({"direct": job.now_ms}, job.now_ms)
    found = asked(job, 0.5)
    assert (found.proven_ms, found.expected) == (None, None)


def test_when_the_target_is_set_it_is_learned_at_once() -> None:
    job = silent_at_times()
    job.configure(LEARNING, job.now_ms)
    found = arrival_delay(job)
    assert found is not None
    assert found.is_learned
    assert found.delay_ms < HIGHEST_MS


def test_a_limit_on_skew_is_predicted() -> None:
    job = JobMachine(replace(WITHOUT_TARGET, frames=None), 1000)
    job.report({"a": 1000, "b": 990, "c": 1010, "slow": 500, "slower": 400}, 1000)
    found = what_if_skew(job, 300)
    assert found.coalesced_watermark == 990
    assert found.passed is not None
    assert [each.substream for each in found.passed.substreams] == ["slower", "slow"]
    assert job.watermark == 400, "nothing has changed"
    job.configure(replace(job.config, max_skew_ms=300), 1000)
    assert job.watermark == 990
    assert what_if_skew(job, 5000).passed is None
