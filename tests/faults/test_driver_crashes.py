"""A driver that dies at each point of a batch: every replay gives the functions what the first attempt did."""

from pathlib import Path

from pyspark.sql import SparkSession

from tests.support.api import operate
from tests.support.pipeline import LAG, QUERY, SCHEMA, Settings
from tests.support.points import POINTS
from tests.support.runs import Call, calls, run_here
from tidegate_spark import limiting_lag
from tidegate_spark.testing import CoordinatorProcess, FileBatches

STEP = 1_000_000


def rows_of(batch: int) -> list[dict[str, object]]:
    """``behind`` is what an unpinned replay would call late: the job moves past it while the driver is dead."""
    top = (batch + 1) * STEP
    late = [("a", top - 2 * STEP + 7)] if batch > 1 else []
    return [{"k": k, "t": t} for k, t in [("a", top), ("b", top - 5000), ("behind", top - 400_000), *late]]


def test_a_driver_that_is_killed_at_any_point_changes_nothing(
    spark: SparkSession, tidegate: CoordinatorProcess, tmp_path: Path
) -> None:
    """One batch dies before its pin, the next one after it, and so on; a run that goes on replays the one before.

    While the driver is dead, the job's C moves on: another reporter is far ahead, and an operator waits for the
    query no longer.
    """
    gate = tidegate.gate(rules=limiting_lag(LAG))
    settings = Settings("local[2]", tidegate.url, gate.coordinator.job, str(tmp_path))
    source = FileBatches(tmp_path / "input", SCHEMA)
    source.add(*rows_of(0))
    pins: dict[int, int | None] = {}
    for batch, point in enumerate(POINTS, 1):
        source.add(*rows_of(batch))
        settings.die, settings.of = point, batch
        assert not run_here(spark, settings)
        query = next(known for known in gate.queries() if known["query"] == QUERY)
        begun = point != "before the pin"
        assert query["batch_id"] == (batch if begun else batch - 1)
        assert query["batch_open"] == (begun and point != "after it")
        if begun:
            pins[batch] = query["pin"]
        operate(gate, "POST", ":report", {"substreams": ["x"], "event_times": [(batch + 1) * STEP - 200_000]})
        operate(gate, "POST", "/substreams:idle", {"query": QUERY, "names": ["a", "b", "behind"]})
        assert gate.status()["coalesced"] >= (batch + 1) * STEP - 210_000
        if begun and point != "after it":
            assert gate.status()["watermark"] == pins[batch]
    settings.die = None
    assert run_here(spark, settings)

    made = calls(tmp_path)
    given: dict[tuple[str, int], list[Call]] = {}
    for call in made:
        given.setdefault((call.kind, call.batch), []).append(call)
    for attempts in given.values():
        assert all((call.pin, call.rows) == (attempts[0].pin, attempts[0].rows) for call in attempts)
        assert [call.replayed for call in attempts[1:]] == [True] * (len(attempts) - 1)
    for batch, pin in pins.items():
        assert {call.pin for call in made if call.batch == batch} == {pin}
    # Functions ran twice where the driver died in or after them.
    attempts_of = {batch: len(given["on_time", batch]) for batch in range(len(POINTS) + 1)}
    assert attempts_of == {0: 1, 1: 1, 2: 1, 3: 1, 4: 2, 5: 2, 6: 2}
    on_time = {tuple(row) for (kind, _), attempts in given.items() if kind == "on_time" for row in attempts[0].rows}
    late = {tuple(row) for (kind, _), attempts in given.items() if kind == "late" for row in attempts[0].rows}
    everything = {(row["k"], row["t"]) for batch in range(len(POINTS) + 1) for row in rows_of(batch)}
    assert on_time | late == everything
    assert on_time & late == set()
    # The batch that died before its pin was pinned after the job had moved on; all others were judged as they began.
    assert late == {("a", batch * STEP - STEP + 7) for batch in range(2, len(POINTS) + 1)} | {("behind", 1_600_000)}
    rows = gate.status()["rows"]
    assert rows == {"on_time": len(on_time), "updated": 0, "late": len(late), "null_event_time": 0, "future": 0}
    assert sum(row["reported"] for row in gate.substreams()) == len(everything)
