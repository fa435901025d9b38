"""The number of jobs that follow the clock and that one and two replicas keep up to date.

There are more jobs than the replicas can sweep within the sweep interval. Each sweep of such a job emits a watermark,
so the number of emissions is the number of sweeps.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from benchmarks.paired import interleave
from benchmarks.results import Row, Spread, ratios
from tidegate.domain.config import JobConfig
from tidegate.domain.policies import LimitingTimestampAndWallClockLag
from tidegate.store.connection import connect
from tidegate.store.embedded import EmbeddedValkey
from tidegate.store.jobs import JobStore
from tidegate.store.pieces import direct_pieces
from tidegate_spark.testing import CoordinatorProcess

JOBS, INTERVAL_MS = 10_000, 200
WARM_UP_S, SECONDS = 2.0, 6.0
AT_ONCE = 500
LAG_MS = 60_000


def run(out: Path, rounds: int, show: Callable[[str], None]) -> list[Row]:
    """Measure one and two replicas in each round, in random order."""
    with EmbeddedValkey(out / f"sweeps-{time.time_ns()}") as valkey:
        asyncio.run(_create(valkey.url))
        show(f"  {JOBS:,} jobs")
        replicas = {number: partial(_kept, valkey.url, out, number) for number in (1, 2)}
        kept = interleave(replicas, rounds, show)
    name = f"jobs that follow the clock, kept within {INTERVAL_MS} ms"
    return [
        Row(f"{name}, 1 replica", Spread.of(kept[1]), "jobs"),
        Row(f"{name}, 2 replicas", Spread.of(kept[2]), "jobs"),
        Row(f"{name}, 2 replicas / 1 replica", ratios(kept[2], kept[1]), at_least=1),
    ]


async def _create(url: str) -> None:
    redis = connect(url)
    store = JobStore(redis)
    config = JobConfig(LimitingTimestampAndWallClockLag(LAG_MS, LAG_MS))
    document = {
        "policy": {
            "type": "limiting_timestamp_and_wall_clock_lag",
            "timestamp_lag_ms": LAG_MS,
            "wall_clock_lag_ms": LAG_MS,
        }
    }
    now_ms = time.time_ns() // 1_000_000

    async def create(number: int) -> None:
        await store.configure(f"job-{number}", config, document, None)
        await store.report(
            f"job-{number}", direct_pieces(["a"], max_event_times=[now_ms], watermarks=None, min_event_times=None)
        )

    for first in range(0, JOBS, AT_ONCE):
        await asyncio.gather(*map(create, range(first, first + AT_ONCE)))
    await redis.aclose()


def _kept(url: str, out: Path, replicas: int) -> float:
    """Return the number of jobs that replicas sweep per interval."""
    with ExitStack() as stack:
        for number in range(replicas):
            data = out / f"sweeps-{time.time_ns()}-{number}"
            stack.enter_context(CoordinatorProcess(data, redis_url=url, sweep_interval_ms=str(INTERVAL_MS)))
        time.sleep(WARM_UP_S)
        before, began = asyncio.run(_emissions(url)), time.perf_counter()
        time.sleep(SECONDS)
        after, ended = asyncio.run(_emissions(url)), time.perf_counter()
    return (after - before) / (ended - began) * INTERVAL_MS / 1000


async def _emissions(url: str) -> int:
    redis = connect(url)
    statuses = await JobStore(redis).reads.statuses([f"job-{number}" for number in range(JOBS)])
    await redis.aclose()
    return sum(status.summary.emissions for status in statuses.values() if not isinstance(status, Exception))
