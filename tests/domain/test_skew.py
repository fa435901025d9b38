"""The limit on skew: which substreams it sets apart, and what it leaves as it was."""

from collections.abc import Mapping
from dataclasses import replace
from statistics import median_low

from hypothesis import given
from hypothesis import strategies as st

from tests.support.machine import JobMachine
from tidegate.domain.config import JobConfig
from tidegate.domain.job import Run
from tidegate.domain.limits import is_skewed, skew_bound
from tidegate.domain.policies import LimitingLag
from tidegate.domain.values import DIRECT
from tidegate.domain.views import status, substreams

LIMIT_MS = 100
CONFIG = JobConfig(LimitingLag(0), max_skew_ms=LIMIT_MS)
event_times = st.dictionaries(st.sampled_from("abcdefgh"), st.integers(-500, 500), min_size=1)


def job_of(times: Mapping[str, int], config: JobConfig = CONFIG) -> JobMachine:
    """Return a job whose substreams have all reported in one call."""
    job = JobMachine(config, 0)
    job.report(dict(times), now_ms=0)
    return job


def skewed(job: JobMachine) -> set[str]:
    return {row.substream for row in substreams(job, 0) if row.state == "skewed"}


@given(event_times)
def test_a_substream_is_skewed_if_it_is_further_behind_the_median_than_the_limit(times: dict[str, int]) -> None:
    job, median = job_of(times), median_low(times.values())
    assert skewed(job) == {name for name, time in times.items() if time < median - LIMIT_MS}
    assert len(skewed(job)) <= (len(times) - 1) // 2
    assert job.watermark == min(time for time in times.values() if time >= median - LIMIT_MS)
    assert status(job).skewed == len(skewed(job))


@given(event_times, st.randoms(use_true_random=False))
def test_the_order_of_reports_does_not_matter(times: dict[str, int], drawn: object) -> None:
    """The watermark may be higher on the way, because it never goes back. The skewed substreams are the same."""
    job, names = JobMachine(CONFIG, 0), sorted(times)
    drawn.shuffle(names)  # type: ignore[attr-defined]
    job.declare(DIRECT, names, 0)
    for name in names:
        job.report({name: times[name]}, now_ms=0)
    together = job_of(times)
    assert skewed(job) == skewed(together)
    # Declared substreams hold until they have reported, so each median is that of all substreams.
    assert job.watermark is not None and job.watermark >= min(times.values())


@given(event_times, st.sampled_from("abcdefgh"))
def test_a_removed_substream_is_as_if_it_had_never_been(times: dict[str, int], name: str) -> None:
    job = job_of(times)
    if name not in times:
        return
    job.evict(DIRECT, [name], now_ms=0)
    others = {other: time for other, time in times.items() if other != name}
    if others:
        assert skewed(job) == skewed(job_of(others))


@given(event_times)
def test_without_the_limit_nothing_is_set_apart(times: dict[str, int]) -> None:
    job = job_of(times, replace(CONFIG, max_skew_ms=None))
    assert skewed(job) == set()
    assert job.watermark == min(times.values())


def test_one_fast_clock_sets_nobody_apart() -> None:
    assert skewed(job_of({"a": 0, "fast": 10**6})) == set()
    assert skewed(job_of({"a": 0, "b": 1, "fast": 10**6})) == set()
    assert skewed(job_of({"a": 0, "b": 1, "c": 2, "fast": 10**6})) == set()


def test_a_substream_counts_again_once_it_has_caught_up() -> None:
    job = job_of({"a": 1000, "b": 1000, "c": 0})
    assert (skewed(job), job.watermark) == ({"c"}, 1000)
    job.report({"a": 1050, "b": 1050, "c": 949}, now_ms=0)
    assert (skewed(job), job.watermark) == ({"c"}, 1050)
    job.report({"c": 950}, now_ms=0)
    assert (skewed(job), job.watermark) == (set(), 1050), "the watermark does not go back"
    job.report({"a": 1060, "b": 1060}, now_ms=0)
    assert (skewed(job), job.watermark) == ({"c"}, 1060)
    assert job.limits["max_skew_ms"] == 3


def test_substreams_without_a_watermark_hold() -> None:
    """How far behind they are is not known."""
    job = JobMachine(CONFIG, 0)
    job.declare(DIRECT, ["new"], 0)
    job.report({"a": 1000, "b": 1000, "d": 1000, "c": 0}, now_ms=0)
    assert (skewed(job), job.watermark) == ({"c"}, None)
    job.evict(DIRECT, ["new"], now_ms=0)
    assert job.watermark == 1000
    bound = skew_bound(job)
    assert bound == 900
    assert sum(is_skewed(substream, bound) for substream in job.substreams.values()) == 1


def test_an_open_batch_holds_beside_the_limit() -> None:
    """The limit moves C, and never W past a pinned watermark."""
    job = job_of({"a": 1000, "b": 1000, "c": 950})
    job.begin(Run("q", "checkpoint", "run"), 0, 0)
    job.report({"a": 2000, "b": 2000}, now_ms=0)
    assert (skewed(job), job.coalesced_watermark, job.watermark) == ({"c"}, 2000, 950)
