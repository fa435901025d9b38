"""Who held the watermark, and for how long."""

import time
from collections.abc import Callable

import httpx
import pytest

from tests.support.driver import Driver
from tests.support.store import JobStore
from tidegate.domain.calendar import HOUR_MS
from tidegate.domain.config import JobConfig
from tidegate.domain.history import Sample
from tidegate.domain.policies import LimitingLag
from tidegate.domain.results import HoldReason
from tidegate.runtime.metrics import job_metrics
from tidegate.views.holders import HeldTime, held_times, interval_of, read_holders, read_shares
from tidegate.views.reader import Reader

MINUTE = 60_000


def sample(minute: int, name: str, reason: HoldReason | None = "slow", query: str = "q") -> Sample:
    return Sample(minute * MINUTE, 0, reason, query, name)


def shares(held: list[HeldTime]) -> list[tuple[str, str | None, int, float]]:
    return [(each.kind, each.substream or each.hold, each.held_ms // MINUTE, each.share) for each in held]


def test_each_holder_has_its_time_and_share() -> None:
    """A substream that is first slow and then blocked is one holder. Batches of a query are one holder."""
    samples = [
        sample(0, "HNL"),
        sample(4, "HNL", "blocked"),
        sample(6, "", "open_batch"),
        sample(7, "audit", "hold", ""),
        sample(9, "", None, ""),
    ]
    found = held_times(samples, 0, 10 * MINUTE, 10)
    assert shares(found) == [
        ("substream", "HNL", 6, 0.6),
        ("hold", "audit", 2, 0.2),
        ("open_batch", None, 1, 0.1),
    ]
    assert shares(held_times(samples, 5 * MINUTE, 8 * MINUTE, 1)) == [("substream", "HNL", 1, 1 / 3)]
    assert held_times([], 0, MINUTE, 10) == []


@pytest.mark.parametrize(("range_ms", "interval_ms"), [(900_000, 15_000), (3_600_000, 15_000), (86_400_000, 300_000)])
def test_a_day_has_coarser_samples(range_ms: int, interval_ms: int) -> None:
    assert interval_of(range_ms) == interval_ms


def test_hours_begin_with_the_first_sample(make_driver: Callable[[], Driver]) -> None:
    driver = make_driver()
    store, job = JobStore(driver.store.redis), "held"
    start = time.time_ns() // 1_000_000 - 90 * MINUTE
    driver(store.configure(job, JobConfig(LimitingLag(0)), {"overrides": []}, None, now_ms=start - MINUTE))
    driver(store.report(job, {"HNL": start, "BOS": start + MINUTE}, now_ms=start))
    driver(store.report(job, {"BOS": start + 2 * MINUTE}, now_ms=start + 30 * MINUTE))
    reader = Reader(store, lambda job, state: "", 1000)
    found = driver(read_holders(reader, job, "1d", 10))
    driver.close()
    assert [each.substream for each in found.holders] == ["HNL"]
    assert found.hours[0].start_ms == found.start_ms
    assert len(found.hours) >= 2
    assert all(hour.start_ms % HOUR_MS == 0 for hour in found.hours[1:])


def test_the_metric_has_the_shares_of_the_last_hour(make_driver: Callable[[], Driver]) -> None:
    """The shares are of the hour, also if the job has samples of a part of it only."""
    driver = make_driver()
    store, job, start = JobStore(driver.store.redis), "held-most", 400_000 * HOUR_MS
    driver(store.configure(job, JobConfig(LimitingLag(0)), {"overrides": []}, None, now_ms=start - MINUTE))
    driver(store.report(job, {"HNL": start, "BOS": start + MINUTE}, now_ms=start))
    driver(store.report(job, {"HNL": start + 2 * MINUTE}, now_ms=start + 15 * MINUTE))
    reader = Reader(store, lambda job, state: "", 1000)
    found = driver(read_shares(reader, {job: start + 45 * MINUTE, "absent": 0}, 3))
    assert found == {
        job: [(("substream", "", "BOS"), 0.5), (("substream", "", "HNL"), 0.25)],
        "absent": [],
    }
    [(longest, _)] = driver(read_shares(reader, {job: start + 45 * MINUTE}, 1))[job]
    assert longest == ("substream", "", "BOS")
    statuses = {job: driver(store.reads.status(job, start + 45 * MINUTE))}
    [metric] = [each for each in job_metrics(statuses, found, 0, 1000) if each.name == "tidegate_job_held_ratio"]
    assert [(sample.labels["name"], sample.value) for sample in metric.samples] == [("BOS", 0.5), ("HNL", 0.25)]
    driver.close()


def test_the_answer_of_a_coordinator(tidegate: object, job_name: str) -> None:
    url = tidegate.url  # type: ignore[attr-defined]
    config = {"policy": {"type": "limiting_lag", "lag_ms": 0}}
    httpx.put(f"{url}/v1/jobs/{job_name}", json=config, headers={"If-None-Match": "*"}).raise_for_status()
    body = {"substreams": ["HNL", "BOS"], "max_event_times": [1_357_552_800_000, 1_357_552_860_000]}
    httpx.post(f"{url}/v1/jobs/{job_name}:report", json=body).raise_for_status()
    answer = httpx.get(f"{url}/v1/jobs/{job_name}/holders", params={"range": "15m"})
    assert answer.status_code == 200, answer.text
    assert answer.json()["interval_ms"] == 15_000
    assert httpx.get(f"{url}/v1/jobs/{job_name}/holders", params={"range": "2d"}).status_code == 422
