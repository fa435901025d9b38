"""The jobs of the screenshots. Their event times are near the present, so the page shows lags."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from docs.tools.recording.traffic import Hold, Silence, Traffic
from tests.support.driver import with_store_beside_browser
from tests.support.scenes import AIRPORTS, DAY, HOUR, MINUTE
from tests.support.store import JobStore
from tidegate.store.embedded import EmbeddedValkey
from tidegate_spark.testing import CoordinatorProcess

FLIGHTS = Traffic(
    "flights",
    "departures",
    AIRPORTS,
    lag_ms=10 * MINUTE,
    idle_timeout_ms=90 * MINUTE,
    begin_ms=DAY,
    rows=6,
    silences=(
        Silence("SJU", 18 * HOUR, 16 * HOUR),
        Silence("HNL", 11 * HOUR, 8 * HOUR + 30 * MINUTE),
        Silence("LAX", 3 * HOUR + 20 * MINUTE, 2 * HOUR + 40 * MINUTE),
        Silence("HNL", 38 * MINUTE),
    ),
    holds=[Hold("repair", "repair of the hourly table", 6 * HOUR, 5 * HOUR)],
)
"""SJU and HNL were silent for longer than the idle timeout, so some of their rows are late. HNL is silent again."""

AUDIT = Hold("audit", "invoices of October", 24 * MINUTE, duration_ms=2 * HOUR)
OTHERS = (
    Traffic("clicks", "sessions", [f"clicks-{number:02}" for number in range(24)], lag_ms=5 * MINUTE, rows=2),
    Traffic("payments", "settlement", [f"payments-{number}" for number in range(6)], lag_ms=5 * MINUTE, holds=[AUDIT]),
    Traffic(
        "sensors",
        "readings",
        [f"sensor-{number:03}" for number in range(120)],
        lag_ms=15 * MINUTE,
        idle_timeout_ms=20 * MINUTE,
        rows=2,
        silences=[Silence(f"sensor-{number:03}", HOUR + number * MINUTE) for number in (7, 31, 58, 90)],
    ),
    Traffic("parcels", "shipments", ["DHL", "FedEx", "UPS"], lag_ms=20 * MINUTE, end_ms=26 * MINUTE),
    Traffic("archive", "backfill", ["2025-H1", "2025-H2"], lag_ms=10 * MINUTE, begin_ms=HOUR),
)


@contextmanager
def run_coordinator(directory: Path) -> Iterator[str]:
    """Run a coordinator with the jobs for the duration of a block; yield its URL."""
    with (
        EmbeddedValkey(directory / "valkey") as valkey,
        CoordinatorProcess(directory / "coordinator", redis_url=valkey.url) as coordinator,
    ):
        with_store_beside_browser(valkey, _fill)
        with httpx.Client(base_url=coordinator.url, timeout=30) as http:
            _act(http)
        yield coordinator.url


async def _fill(store: JobStore) -> None:
    seconds, _ = await store.redis.time()
    now_ms = seconds * 1000
    await FLIGHTS.fill(store, now_ms)
    for traffic in OTHERS:
        await traffic.fill(store, now_ms)


def _act(http: httpx.Client) -> None:
    """Complete a job, and create a job whose query has not started."""
    http.post("/v1/jobs/archive:complete", json={"reason": "the year is over"}).raise_for_status()
    lag = {"type": "limiting_lag", "lag_ms": 10 * MINUTE}
    config = {"policy": lag, "expected_queries": ["invoices"]}
    http.put("/v1/jobs/billing", json=config, headers={"If-None-Match": "*"}).raise_for_status()
