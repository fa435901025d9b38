"""Delays and learned lags in the domain and in the Lua functions, with more delays than in ``test_twin.py``."""

import os
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.store.strategies import START, owners, targets
from tests.store.twin import Twin
from tests.support.driver import Driver, command_of
from tests.support.versions.constants import library_with
from tidegate.domain.batches import PartitionReport
from tidegate.domain.completeness import HIGHEST_BUCKET, MAX_BUCKETS, RowsByDelay
from tidegate.domain.config import FrameThrottle, JobConfig, MinStepThrottle, NoThrottle
from tidegate.domain.job import Run
from tidegate.domain.policies import LimitingLag, TargetCompleteness
from tidegate.store import functions, servers
from tidegate.store.embedded import EmbeddedValkey

EXAMPLES = int(os.environ.get("TWIN_EXAMPLES", "60"))
rows = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 40)), min_size=1, max_size=4).map(tuple)
configs = st.builds(
    JobConfig,
    targets,
    st.sampled_from([NoThrottle(), NoThrottle(), FrameThrottle(20, 20), MinStepThrottle(7)]),
    delay_half_life_ms=st.sampled_from([8, 100, 4000]),
    idle_timeout_ms=st.sampled_from([None, 40]),
)
reports = st.tuples(
    owners.filter(lambda owner: owner != "q"),
    st.sampled_from("ab"),
    st.none() | st.integers(-20, 60),
    rows,
    st.integers(0, 20) | st.just(50),
)


@given(configs=st.lists(configs, min_size=1, max_size=2), reports=st.lists(reports, min_size=5, max_size=25))
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
def test_both_sides_learn_the_same_lags(
    configs: list[JobConfig], reports: list[tuple[str, str, int | None, RowsByDelay, int]], valkey: EmbeddedValkey
) -> None:
    twin = Twin(Driver(valkey.url), configs[0], START, None)
    try:
        max_event_time, run = START, Run("p", "checkpoint", "run")
        for number, (owner, name, ahead, delays, passing) in enumerate(reports):
            twin.now += passing
            max_event_time += ahead or 0
            event_times = {} if ahead is None else {name: max_event_time}
            if number == len(reports) // 2:
                twin.change(configs[-1])
            if owner == "":
                _both(twin, "report", event_times, delays={name: delays})
            else:
                _both(twin, "begin", run, number)
                for partition in range(2):  # the first partition reports again below
                    report = PartitionReport(partition, event_times, delays={name: delays})
                    _both(twin, "stage", run, number, report)
                _both(twin, "stage", run, number, replace(report, partition=0))
                _both(twin, "commit", run, number, None)
            twin.compare_tables()
    finally:
        twin.close()


def _both(twin: Twin, command: str, *arguments: object, **named: object) -> None:
    twin.both(
        lambda: getattr(twin.machine, command)(*arguments, now_ms=twin.now, **named),
        command_of(twin.store, command)(twin.job, *arguments, now_ms=twin.now, **named),
    )


@pytest.mark.parametrize("limits", [{}, {"STEP": 1, "ENTRIES": 1, "PIECE": 1}], ids=["one call", "many calls"])
def test_a_learned_lag_raises_the_watermark_at_once(
    limits: dict[str, int], valkey: EmbeddedValkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command in many calls learns in one call, and evaluates in another one."""
    made = library_with(monkeypatch, **limits)
    for module in (functions, servers):
        monkeypatch.setattr(module, "library", lambda: made)
    twin = Twin(Driver(valkey.url), JobConfig(TargetCompleteness(0.5, 60, 0, None, 1)), START, None)
    try:
        _both(twin, "report", {"a": START, "b": START, "c": START})
        _both(twin, "report", {"a": START, "b": START}, delays={"c": ((0, 100),)})
        twin.compare_tables()
        assert twin.machine.substreams["", "c"].watermark == START
    finally:
        twin.close()


def test_both_sides_bound_a_sketch_alike(valkey: EmbeddedValkey) -> None:
    twin = Twin(Driver(valkey.url), JobConfig(LimitingLag(5)), START, None)
    try:
        _both(twin, "report", {"a": START})
        for first in range(3):
            every = tuple((bucket, 10**12) for bucket in range(first, HIGHEST_BUCKET + 1, 3))
            _both(twin, "report", {"a": START}, delays={"a": every})
            twin.compare_tables()
        sketch = twin.machine.delays["", "a"]
        assert len(sketch.weights) == MAX_BUCKETS + 1
        assert min(bucket for bucket in sketch.weights if bucket) == HIGHEST_BUCKET - MAX_BUCKETS + 1
    finally:
        twin.close()


def test_a_repeated_report_of_a_partition_changes_nothing(valkey: EmbeddedValkey) -> None:
    run, delays = Run("p", "checkpoint", "run"), {"a": ((0, 7), (100, 3))}
    twin = Twin(Driver(valkey.url), JobConfig(LimitingLag(5)), START, None)
    try:
        _both(twin, "begin", run, 0)
        _both(twin, "stage", run, 0, PartitionReport(0, {"a": START}))
        _both(twin, "commit", run, 0, None)
        _both(twin, "begin", run, 1)
        for _ in range(3):
            _both(twin, "stage", run, 1, PartitionReport(0, {"a": START}, delays=delays))
        for _ in range(2):
            _both(twin, "commit", run, 1, None)
        _both(twin, "stage", run, 1, PartitionReport(0, {"a": START}, delays=delays))
        assert twin.machine.delays["p", "a"].rows == 10
        twin.compare_tables()
    finally:
        twin.close()
