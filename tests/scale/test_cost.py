"""The CPU time of a report does not grow with the job, measured by the server's own statistics of commands."""

import random
import statistics
from collections.abc import Mapping

import pytest

from tests.support.driver import Driver
from tidegate.domain.config import JobConfig
from tidegate.domain.policies import LimitingLag, LimitingLagAndDelay, LimitingLagAndLull, Policy

REPORTED = 100
REPORTS = 60
ROUNDS = 9


def fill(driver: Driver, job: str, policy: Policy, size: int) -> None:
    driver(driver.store.configure(job, JobConfig(policy, idle_timeout_ms=10**9), {}, None))
    for first in range(0, size, 5000):
        driver(driver.store.report(job, {f"s{n}": n for n in range(first, min(first + 5000, size))}))


def script_us_per_substream(driver: Driver, job: str, size: int, chance: random.Random) -> float:
    """Return the CPU time of the server per reported substream, in µs, in a job of ``size`` substreams."""

    async def usec() -> int:
        stats: Mapping[str, Mapping[str, int]] = await driver.store.redis.info("commandstats")
        return int(stats["cmdstat_fcall"]["usec"])

    before = driver(usec())
    for _ in range(REPORTS):
        names = chance.sample(range(size), REPORTED)
        time = chance.randrange(10**12, 10**12 + 10**9)
        driver(driver.store.report(job, {f"s{n}": time + n for n in names}))
    return (driver(usec()) - before) / (REPORTS * REPORTED)


@pytest.mark.parametrize(
    "policy",
    [LimitingLag(10), LimitingLagAndLull(10, 10**9), LimitingLagAndDelay(10, 10**9)],
    ids=["limiting_lag", "lull", "delay"],
)
def test_a_report_to_a_job_a_hundred_times_as_large_takes_little_longer(
    driver: Driver, job_name: str, policy: Policy
) -> None:
    """A growing job must not slow down the reports of its executors."""
    sizes = {f"{job_name}.small": 1000, f"{job_name}.large": 100_000}
    for name, size in sizes.items():
        fill(driver, name, policy, size)
    chance = random.Random(7)  # noqa: S311 - no secret
    ratios = []
    for _ in range(ROUNDS):
        small, large = (script_us_per_substream(driver, name, size, chance) for name, size in sizes.items())
        ratios.append(large / small)
    print(f"{small:.1f} us and {large:.1f} us per substream, ratios {[round(ratio, 2) for ratio in ratios]}")
    for name in sizes:
        driver(driver.store.delete(name))
    assert statistics.median(ratios) <= 4
