"""The policy ``target_completeness``: the completeness that it reaches and the lag that it needs."""

import math
import statistics
from collections import Counter
from dataclasses import dataclass

import pytest

from tests.domain.streams import APART, LAWS, Law, arrivals, batches
from tests.support.machine import JobMachine
from tidegate.domain.completeness import bucket_of
from tidegate.domain.config import JobConfig
from tidegate.domain.errors import InvalidConfig
from tidegate.domain.policies import LimitingLag, Policy, TargetCompleteness

SEEDS = 20
COLD_START = 60_000
HALF_LIFE = 20_000 * APART
T_95 = 1.729
"""Student's t with 19 degrees of freedom, one-sided."""


@dataclass
class Judged:
    """Results by batch.

    ``rows`` and ``late`` count the rows and the late rows. ``lags`` are the lags in force. ``delays`` are those of all
    rows after warm-up. ``warm`` is the first batch whose lag is learned.
    """

    rows: list[int]
    late: list[int]
    lags: list[int]
    delays: list[int]
    warm: int | None = None

    def completeness(self, first: int, last: int | None = None) -> float:
        return 1 - sum(self.late[first:last]) / sum(self.rows[first:last])


def judged(policy: Policy, times: list[int]) -> Judged:
    """Return the results of a stream. Each batch is classified by the watermark before it, as in Spark."""
    job = JobMachine(JobConfig(policy, delay_half_life_ms=HALF_LIFE), 0)
    found = Judged([], [], [], [])
    for at, batch in enumerate(batches(times)):
        watermark, max_event_time = job.coalesced_watermark, job.max_event_time
        substream = job.substreams.get(("", "s"))
        if found.warm is None and substream is not None and substream.policy_state.lag != COLD_START:
            found.warm = at
        found.rows.append(len(batch))
        found.late.append(0 if watermark is None else sum(time < watermark for time in batch))
        found.lags.append(0 if substream is None or substream.policy_state.lag is None else substream.policy_state.lag)
        delays = {}
        if max_event_time is not None:
            delays["s"] = (*Counter(bucket_of(max_event_time - time) for time in batch).items(),)
            if found.warm is not None:
                found.delays += [max_event_time - time for time in batch]
        job.report({"s": max(batch)}, 0, delays=delays)
        assert job.coalesced_watermark is not None
        assert watermark is None or job.coalesced_watermark >= watermark
    return found


@pytest.mark.parametrize(("target", "events"), [(0.99, 20_000), pytest.param(0.999, 60_000, marks=pytest.mark.fuzz)])
@pytest.mark.parametrize("law", LAWS)
def test_on_a_steady_stream_the_target_is_reached_at_little_more_than_the_best_fixed_lag(
    law: str, target: float, events: int
) -> None:
    reached, costs = [], []
    for seed in range(SEEDS):
        found = judged(TargetCompleteness(target, COLD_START), arrivals(LAWS[law], events, seed))
        assert found.warm is not None
        reached.append(found.completeness(found.warm))
        best = sorted(found.delays)[math.ceil(target * len(found.delays)) - 1]
        costs.append(statistics.fmean(found.lags[found.warm :]) / best)
    bound = statistics.fmean(reached) - T_95 * statistics.stdev(reached) / math.sqrt(SEEDS)
    print(f"{law} {target}: {statistics.fmean(reached):.4%}, at least {bound:.4%}, {statistics.fmean(costs):.3f} x")
    assert bound >= target - 0.0005
    assert statistics.fmean(costs) <= 1.25


@pytest.mark.parametrize("law", [pytest.param(law, marks=pytest.mark.fuzz) for law in LAWS])
def test_completeness_recovers_soon_after_delays_have_tripled(law: str) -> None:
    """Completeness is measured after 2000 more events, of which 20 exceed the target."""
    change, soon, after = 20_000, 2_000, 20_000
    lost, unlearnt = [], []
    for seed in range(SEEDS):
        times = arrivals(LAWS[law], change + soon + after, seed, change, 3)
        found = judged(TargetCompleteness(0.99, COLD_START), times)
        first = (change + soon) // 20
        lost.append(1 - found.completeness(first, first + 5_000 // 20))
        fixed = judged(LimitingLag(found.lags[change // 20 - 1]), times)
        unlearnt.append(1 - fixed.completeness(first, first + 5_000 // 20))
    print(f"{law}: {statistics.fmean(lost):.3%} late, {statistics.fmean(unlearnt):.3%} under the lag before the change")
    assert statistics.fmean(lost) <= 0.01
    assert statistics.fmean(unlearnt) > 0.02


def test_a_substream_that_never_has_enough_rows_learns_again() -> None:
    """Old delays fade, so a small substream never has enough rows of its own. A single bad batch must not set its lag
    forever.
    """
    job = JobMachine(JobConfig(TargetCompleteness(0.99, 1000), delay_half_life_ms=1000), 0)
    max_event_time = 0

    def report(rows: dict[str, list[int]]) -> None:
        nonlocal max_event_time
        max_event_time += 100
        delays = {name: (*Counter(map(bucket_of, found)).items(),) for name, found in rows.items()}
        job.report(dict.fromkeys(rows, max_event_time), 0, delays=delays)

    usual = {"large": [20] * 99 + [200], "small": [20] * 20}
    for _ in range(50):
        report(usual)
    small = job.substreams["", "small"]
    learnt = small.policy_state.lag
    assert learnt is not None and learnt < 300
    assert job.delays["", "small"].rows < 1000
    report({"large": usual["large"], "small": [10**9] * 20})
    assert small.policy_state.lag == 1000  # limited to the cold-start lag
    for _ in range(100):
        report(usual)
    assert small.policy_state.lag is not None and small.policy_state.lag <= learnt


def test_the_lag_narrows_slowly_when_delays_shrink() -> None:
    change = 20_000
    found = judged(TargetCompleteness(0.99, COLD_START), arrivals(LAWS["exponential"], 120_000, 1, change, 0.25))
    before = found.lags[change // 20]
    step = HALF_LIFE // 8 // APART // 20
    for at in range(change // 20, len(found.lags) - step, step):
        assert found.lags[at + step] >= 0.7 * found.lags[at]
    assert found.lags[-1] < 0.5 * before


def delayed_by_half(seed: int) -> list[tuple[str, int]]:
    """Return rows of ten substreams, of which five are delayed by one minute."""
    rows = []
    for at in range(10):
        later = 60_000 if at % 2 else 0
        law: Law = LAWS["exponential"]
        for time, sent in enumerate(arrivals(law, 4_000, seed * 10 + at)):
            rows.append((time * APART + later, f"s{at}", sent))
    return [(name, sent) for _, name, sent in sorted(rows)]


def test_with_half_of_the_substreams_delayed_only_a_common_watermark_loses_a_third() -> None:
    rows = delayed_by_half(1)
    by_each = JobMachine(JobConfig(TargetCompleteness(0.99, COLD_START), delay_half_life_ms=HALF_LIFE), 0)
    by_each.declare("", [f"s{at}" for at in range(10)], 0)
    late = for_all = judged_rows = 0
    best: int | None = None
    warm = len(rows) // 2
    for first in range(0, len(rows), 50):
        batch = rows[first : first + 50]
        watermark = by_each.coalesced_watermark
        learnt = by_each.substreams["", "s0"].policy_state.lag
        assert learnt is not None
        if first >= warm and best is not None:
            judged_rows += len(batch)
            late += sum(watermark is not None and time < watermark for _, time in batch)
            for_all += sum(time < best - learnt for _, time in batch)
        max_event_times: dict[str, int] = {}
        delays: dict[str, Counter[int]] = {}
        for name, time in batch:
            max_event_time = by_each.substreams["", name].max_event_time
            if max_event_time is not None:
                delays.setdefault(name, Counter())[bucket_of(max_event_time - time)] += 1
            max_event_times[name] = max(time, max_event_times.get(name, time))
        best = max([*max_event_times.values(), *([] if best is None else [best])])
        by_each.report(max_event_times, 0, delays={name: (*counted.items(),) for name, counted in delays.items()})
    print(f"{late / judged_rows:.3%} late, {for_all / judged_rows:.1%} by one watermark for all")
    assert late / judged_rows <= 0.01
    assert for_all / judged_rows >= 0.33


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"target": 1.0}, "policy.target"),
        ({"target": 0.4}, "policy.target"),
        ({"floor_ms": -1}, "policy.floor_ms"),
        ({"floor_ms": 20, "ceiling_ms": 10}, "policy.ceiling_ms"),
        ({"floor_ms": 20, "cold_start_lag_ms": 10}, "policy.cold_start_lag_ms"),
        ({"ceiling_ms": 20, "cold_start_lag_ms": 30}, "policy.cold_start_lag_ms"),
        ({"min_rows": 0}, "policy.min_rows"),
    ],
)
def test_invalid_targets_and_bounds_are_refused(config: dict[str, float], field: str) -> None:
    with pytest.raises(InvalidConfig) as refused:
        TargetCompleteness(**{"target": 0.99, "cold_start_lag_ms": 15, **config})  # type: ignore[arg-type]
    assert refused.value.details["field"] == field


def test_the_lag_is_within_its_bounds() -> None:
    times = arrivals(LAWS["pareto"], 10_000, 1)
    found = judged(TargetCompleteness(0.99, 40_000, 30_000, 45_000), times)
    assert found.warm is None or all(30_000 <= lag <= 45_000 for lag in found.lags[1:])
    found = judged(TargetCompleteness(0.999, 40_000, 0, 45_000, min_rows=1000), times)
    assert found.lags[-1] == 45_000


def test_the_cold_start_lag_applies_until_enough_rows_are_known() -> None:
    policy = TargetCompleteness(0.99, COLD_START, min_rows=100)
    job = JobMachine(JobConfig(policy), 0)
    job.report({"a": 1000, "b": 1000}, 0)
    job.report({"a": 2000}, 0, delays={"a": ((bucket_of(10), 99),)})
    assert job.substreams["", "a"].policy_state.lag == COLD_START
    job.report({"a": 3000}, 0, delays={"a": ((bucket_of(10), 1),)})
    assert job.substreams["", "a"].policy_state.lag == 10
    # Only the next report of b updates its lag. Then b uses the delays of all substreams.
    assert job.substreams["", "b"].policy_state.lag == COLD_START
    job.report({"b": 2000}, 0, delays={"b": ((bucket_of(10), 1),)})
    assert job.substreams["", "b"].policy_state.lag == 10
