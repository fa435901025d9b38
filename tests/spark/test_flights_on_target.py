"""The flights of two weeks with a target of 99 %: Spark and the service give the results of a replay in the domain."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from pyspark.sql import SparkSession

from examples.flights import data
from examples.flights.settings import Settings
from examples.flights.spark import FlightsSource
from tests.support.machine import JobMachine
from tests.support.streams import to_the_end
from tidegate.domain.completeness import bucket_of
from tidegate.domain.config import FrameThrottle, JobConfig
from tidegate.domain.policies import LimitingLag, Policy, TargetCompleteness
from tidegate.domain.values import EXACT_DOUBLE
from tidegate_spark import Committed, target_completeness
from tidegate_spark.testing import CoordinatorProcess

TARGET = 0.99
COLD_START, HALF_LIFE, FRAME = timedelta(hours=6), timedelta(days=7), timedelta(hours=1)
HOUR = 3_600_000


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(datetime(2013, 1, 1, tzinfo=UTC), 14, 6, 30, 0, tmp_path)


def by_hand(landings: data.Slice, settings: Settings, policy: Policy) -> tuple[list[int], dict[str, int | None]]:
    """Return the number of late rows of each batch, and the last lag of each substream."""
    flights = landings.flights
    frame = FrameThrottle(HOUR, HOUR)
    config = JobConfig(policy, frame, delay_half_life_ms=HALF_LIFE // timedelta(milliseconds=1))
    job = JobMachine(config, 0)
    late = []
    for _, batch in flights.groupby((flights["landed_at"] - settings.start) // timedelta(hours=settings.batch_hours)):
        times = (batch["departed_at"] - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
        watermark = job.coalesced_watermark
        late.append(0 if watermark is None else int((times < watermark).sum()))
        delays: dict[str, Counter[int]] = {}
        max_event_times: dict[str, int] = {}
        for origin, time in zip(batch["origin"], map(int, times), strict=True):
            known = job.substreams.get(("", origin))
            if known is not None and known.max_event_time is not None:
                behind = known.max_event_time - config.throttle.classified_at(time, EXACT_DOUBLE)
                delays.setdefault(origin, Counter())[bucket_of(behind)] += 1
            max_event_times[origin] = max(time, max_event_times.get(origin, time))
        job.report(max_event_times, 0, delays={origin: (*counted.items(),) for origin, counted in delays.items()})
    return late, {name: substream.policy_state.lag for (_, name), substream in job.substreams.items()}


def test_the_flights_with_a_target(
    spark: SparkSession, tidegate: CoordinatorProcess, checkpoint: str, settings: Settings, tmp_path: Path
) -> None:
    landings = data.load(settings)
    data.write_landings(landings, settings, tmp_path / "landings")
    config = target_completeness(TARGET, COLD_START, frame=FRAME, delay_half_life=HALF_LIFE)
    job = tidegate.job(config=config)
    committed: list[Committed] = []
    flights = FlightsSource(spark, tmp_path / "landings", []).stream()
    stream = job.stream(flights, event_time="departed_at", substream="origin")
    to_the_end(stream.foreach_batch(lambda df, batch_id: None).on_commit(committed.append), checkpoint)

    milliseconds = COLD_START // timedelta(milliseconds=1)
    late, lags = by_hand(landings, settings, TargetCompleteness(TARGET, milliseconds))
    assert [batch.late for batch in committed] == late
    assert {row["substream"]: row["lag"] for row in job.substreams()} == lags
    rows = len(landings.flights)
    assert 1 - sum(late) / rows >= TARGET
    lost, _ = by_hand(landings, settings, LimitingLag(settings.lag_minutes * 60_000))
    assert sum(lost) / rows > 0.1
    completeness = httpx.get(f"{tidegate.url}/v1/jobs/{job.connection.job}/completeness").raise_for_status().json()
    assert completeness["achieved"] == pytest.approx(1 - sum(late) / rows)
    assert completeness["target"] == TARGET
    assert completeness["recommended_lag_ms"] < max(lag for lag in lags.values() if lag is not None)
    print(f"{1 - sum(late) / rows:.2%} on time, {sum(lost) / rows:.1%} lost by half an hour, lags {lags}")
