"""Seeds of the simulation, and all orders of a small case."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.simulation.exhaustive import CASES, explore
from tests.simulation.faults import RATES
from tests.simulation.run import Simulation, statistics
from tests.simulation.shrink import shrink
from tidegate.domain.batches import _tell_outputs
from tidegate.domain.completeness import RowsOfHour
from tidegate.domain.frames import advance_frames, count_rows
from tidegate.domain.job import JobState, Query, TableVersion
from tidegate_spark.protocol.evidence import BatchInput, Evidence
from tidegate_spark.sources import running
from tidegate_spark.sources.offsets import PartitionNames, ReadPartitions, input_of

SEEDS_BY_DEFAULT = 40
MAX_STATES = 3000
"""Maximum number of states of a case. make simulate EXHAUSTIVE=yes explores all states."""


def test_some_seeds_hold_every_guarantee() -> None:
    outcomes = [Simulation(seed).run() for seed in range(SEEDS_BY_DEFAULT)]
    assert [outcome.violation for outcome in outcomes if outcome.violation] == []
    numbers = statistics(outcomes)
    assert len(numbers["faults"]) >= 15, "the seeds have most kinds of faults"
    assert numbers["batches"] > 1000


def test_a_seed_has_one_history() -> None:
    first, second = (Simulation(7, keeps_history=True).run() for _ in range(2))
    assert first.history == second.history
    assert len(first.history) > 100


def test_a_violation_is_found_and_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the coordinator ignores tokens, the watermark goes back after a loss of state."""

    def ignore_tokens(job: JobState, token: object) -> None:
        """Ignore the tokens that restore a lost watermark."""

    monkeypatch.setattr("tidegate.domain.batches.accept_token", ignore_tokens)
    outcomes = (Simulation(seed).run() for seed in range(100))
    failed = next(outcome for outcome in outcomes if outcome.violation)
    assert "Monotone" in str(failed.violation)
    shrunk = shrink(failed)
    assert str(shrunk.violation).startswith("Monotone:")
    assert 0 < len(shrunk.faults) <= len(failed.faults)
    assert any("lost" in line for line in shrunk.history)


def _finish_when_read(job: JobState) -> None:
    """Finish the frames that W has passed, before their windows are written."""
    written, job.written_watermark = job.written_watermark, job.watermark
    advance_frames(job)
    job.written_watermark = written


def _lose_corrections(job: JobState) -> None:
    """Forget the rows that have changed finished frames, which are then in their first generation."""
    job.frames.changes.clear()
    advance_frames(job)


def _count_twice(job: JobState, query: str, rows: Sequence[RowsOfHour], *others: Any) -> None:
    """Count the first part of a batch a second time."""
    count_rows(job, query, [*rows, *rows[:1]], *others)


def _tell_after_the_answer(query: Query, outputs: Sequence[TableVersion]) -> None:
    """Store the versions that the call before has told."""
    told = dict(query.outputs)
    _tell_outputs(query, [TableVersion(each.table, told.get("next " + each.table, "0")) for each in outputs])
    query.outputs |= {"next " + each.table: each.version for each in outputs}


@pytest.mark.parametrize(
    ("name", "defect", "says"),
    [
        ("tidegate.domain.evaluate.advance_frames", _finish_when_read, "is finished, and"),
        ("tidegate.domain.evaluate.advance_frames", _lose_corrections, "has changed"),
        ("tidegate.domain.batches.count_rows", _count_twice, "were written"),
        ("tidegate.domain.batches._tell_outputs", _tell_after_the_answer, "was written with version"),
    ],
)
def test_a_defect_of_frames_is_found(monkeypatch: pytest.MonkeyPatch, name: str, defect: Any, says: str) -> None:
    monkeypatch.setattr(name, defect)
    violations = (Simulation(seed).run().violation for seed in range(100))
    found = next(filter(None, violations))
    assert found.startswith("Frames:")
    assert says in found


def _from_the_highest(job: JobState) -> int | None:
    """Return the bound of skew behind the highest watermark instead of the median."""
    watermarks = [s.uncapped_watermark for s in job.substreams.values() if s.counts]
    known = [watermark for watermark in watermarks if watermark is not None]
    return None if job.config.max_skew_ms is None or not known else max(known) - job.config.max_skew_ms


def _never(job: JobState) -> None:
    """Return no bound: nothing is skewed."""


@pytest.mark.parametrize(("bound", "says"), [(_from_the_highest, "Committed: C is"), (_never, "Live: the watermark")])
def test_another_limit_on_skew_is_found(monkeypatch: pytest.MonkeyPatch, bound: Any, says: str) -> None:
    monkeypatch.setattr("tidegate.domain.evaluate.skew_bound", bound)
    violations = (Simulation(seed, without=RATES).run().violation for seed in range(200))
    assert next(filter(None, violations)).startswith(says)


def _now(job: JobState) -> int | None:
    """Return the clock, although some queries may have unread input."""
    return job.now_ms if any(substream.counts for substream in job.substreams.values()) else None


def _of_any_query(job: JobState) -> int | None:
    """Return up to when any of the queries has read all input."""
    return max((query.proven_ms for query in job.queries.values() if query.proven_ms is not None), default=None)


@pytest.mark.parametrize("rule", [_now, _of_any_query])
def test_a_passed_substream_without_proof_is_found(monkeypatch: pytest.MonkeyPatch, rule: Any) -> None:
    for module in ("limits", "evaluate"):
        monkeypatch.setattr(f"tidegate.domain.{module}.proven_until", rule)
    violations = (Simulation(seed).run().violation for seed in range(200))
    assert "a row in order is late" in next(filter(None, violations))


def test_a_client_that_takes_each_batch_for_all_input_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are hidden by limits, minimums and open transactions."""

    def caught_up(read: ReadPartitions, names: PartitionNames | None) -> BatchInput:
        """Return evidence that no partition has unread rows."""
        return replace(input_of(read, names), evidence=Evidence())

    monkeypatch.setattr(running, "input_of", caught_up)
    violations = (Simulation(seed).run().violation for seed in range(100))
    assert "Evidence-based idleness" in next(filter(None, violations))


def test_a_partition_that_is_read_to_its_end_becomes_idle_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without faults, a silent partition holds W for the idle timeout and three triggers. Others may have a backlog."""
    seeds = range(20, 40)
    assert [Simulation(seed, without=RATES).run().violation for seed in seeds] == [None] * len(seeds)
    monkeypatch.setattr(PartitionNames, "of", lambda names, read: frozenset())
    assert any("is not idle" in str(Simulation(seed, without=RATES).run().violation) for seed in seeds)


def test_all_orders_without_faults() -> None:
    explored = explore(CASES["no fault"])
    assert explored.violation is None
    assert explored.states > 100


@pytest.mark.fuzz
def test_seeds_for_a_minute() -> None:
    end = time.monotonic() + 60
    seed = SEEDS_BY_DEFAULT
    while time.monotonic() < end:
        outcome = Simulation(seed).run()
        assert outcome.violation is None, f"make simulate SEED={seed}"
        seed += 1


@pytest.mark.fuzz
@pytest.mark.parametrize("case", sorted(CASES.keys() - {"no fault"}))
def test_orders_with_a_fault(case: str) -> None:
    explored = explore(CASES[case], MAX_STATES)
    assert explored.violation is None, explored.path
