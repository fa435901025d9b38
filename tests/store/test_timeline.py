"""The timeline of a job: both sides keep the same samples of the watermark and its holder."""

from collections.abc import Callable

import pytest

from tests.store.twin import Twin
from tests.support.driver import Driver
from tidegate.domain.config import JobConfig
from tidegate.domain.history import COARSE_MS, FINE_MS, SAMPLES_KEPT, Sample
from tidegate.domain.job import Run
from tidegate.domain.policies import LimitingLag

START = 1_700_000_000_000 // COARSE_MS * COARSE_MS
RUN = Run("arrivals", "checkpoint", "run")


@pytest.fixture
def twin(make_driver: Callable[[], Driver]) -> Twin:
    return Twin(make_driver(), JobConfig(LimitingLag(0), max_future_skew_ms=None), START, None)


def samples(twin: Twin, interval_ms: int) -> list[Sample]:
    """Return the samples, which must be the same on both sides."""
    found = twin.driver(twin.store.reads.samples(twin.job, interval_ms, SAMPLES_KEPT[interval_ms], twin.now)).samples
    assert found == twin.machine.timeline.samples(interval_ms)
    return found


def report(twin: Twin, **event_times: int) -> None:
    twin.both(
        lambda: twin.machine.report(event_times, now_ms=twin.now),
        twin.store.report(twin.job, event_times, now_ms=twin.now),
    )


def sweep(twin: Twin) -> None:
    twin.both(lambda: twin.machine.sweep(twin.now), twin.store.sweep(twin.job, twin.now))


def test_the_first_command_of_an_interval_adds_a_sample(twin: Twin) -> None:
    report(twin, slow=10, fast=20)  # in the interval of the creation
    twin.now += FINE_MS
    report(twin, slow=11, fast=21)
    twin.now += FINE_MS - 1
    report(twin, slow=12, fast=22)
    twin.now -= 5 * FINE_MS  # the clock of the job does not go back
    report(twin, slow=13, fast=23)
    twin.now = START + COARSE_MS
    report(twin, slow=14, fast=24)
    created = Sample(START, None, None, "", "")
    first, last = (Sample(START + at, w, "slow", "", "slow") for at, w in ((FINE_MS, 11), (COARSE_MS, 14)))
    assert samples(twin, FINE_MS) == [created, first, last]
    assert samples(twin, COARSE_MS) == [created, last]
    twin.close()


def test_a_sample_names_the_holder(twin: Twin) -> None:
    """The holder is a substream, a hold, or an open batch. A name may contain spaces."""

    def holder() -> tuple[str | None, str, str]:
        twin.now += FINE_MS
        sweep(twin)
        latest = samples(twin, FINE_MS)[-1]
        return latest.reason, latest.query, latest.name

    report(twin, **{"a name": 10, "other": 20})
    assert holder() == ("slow", "", "a name")
    twin.both(
        lambda: twin.machine.hold("audit of May", 10, None, now_ms=twin.now),
        twin.store.actions.hold(twin.job, "audit of May", 10, now_ms=twin.now),
    )
    report(twin, **{"a name": 15})
    assert holder() == ("hold", "", "audit of May")
    twin.both(lambda: twin.machine.begin(RUN, 0, now_ms=twin.now), twin.store.begin(twin.job, RUN, 0, now_ms=twin.now))
    twin.both(
        lambda: twin.machine.release("audit of May", now_ms=twin.now),
        twin.store.actions.release(twin.job, "audit of May", now_ms=twin.now),
    )
    assert holder() == ("open_batch", "arrivals", "")
    twin.close()


def test_a_timeline_is_bounded_and_survives_a_reset_but_not_a_deletion(twin: Twin) -> None:
    twin.now += FINE_MS
    sweep(twin)
    assert len(samples(twin, FINE_MS)) == 1  # of the creation: an empty job has no watermark and no holder
    report(twin, one=10)
    for _ in range(SAMPLES_KEPT[FINE_MS] + 10):
        twin.now += FINE_MS
        sweep(twin)
    assert len(samples(twin, FINE_MS)) == SAMPLES_KEPT[FINE_MS]
    twin.driver(twin.store.actions.reset(twin.job, now_ms=twin.now))
    kept = twin.driver(twin.store.reads.samples(twin.job, FINE_MS, 1000, twin.now)).samples
    assert len(kept) == SAMPLES_KEPT[FINE_MS]
    twin.driver(twin.store.delete(twin.job, now_ms=twin.now))
    keys = twin.driver(stored(twin))
    assert [key for key in keys if "timeline" in key] == []
    twin.close()


async def stored(twin: Twin) -> list[str]:
    return [str(key) async for key in twin.store.redis.scan_iter(f"*{twin.job}*")]
