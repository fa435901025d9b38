"""A driver that crashes before or after any effect: each request and each write beside the checkpoint.

A first run without a crash lists the points. Then the driver crashes once at each point, and a new run of the query
follows, as after ``kill -9``.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.api import operate
from tests.support.clock import VirtualClock
from tests.support.drivers import Run, Runs
from tests.support.local import LocalCoordinator
from tests.support.streams import LAG
from tidegate_spark import limiting_lag
from tidegate_spark.protocol.batches import OpenBatch
from tidegate_spark.protocol.checkpoint import Checkpoint
from tidegate_spark.protocol.fold import Fold

STEP = 100_000
BATCHES = 3


class DriverCrash(BaseException):
    """The driver has crashed. This is a `BaseException`, so that no handler of `Exception` catches it."""


@dataclass
class Effects:
    """A counter of a driver's effects that crashes the driver at one of them.

    Attributes:
        fatal: Number of the point at which the driver crashes; None for no crash. Effect ``n`` has the points ``2n``,
            before it, and ``2n + 1``, after it.
    """

    fatal: int | None = None
    points: int = 0
    named: list[str] = field(default_factory=list)
    dead: bool = False

    @contextmanager
    def effect(self, name: str) -> Iterator[None]:
        """Crash the driver before or after an effect, if that point is the fatal one."""
        self._reach(f"before {name}")
        yield
        self._reach(f"after {name}")

    def _reach(self, name: str) -> None:
        self.named.append(name)
        self.dead = self.dead or self.points == self.fatal
        self.points += 1
        if self.dead:
            raise DriverCrash(name)


class Transport(httpx.HTTPTransport):
    """A transport whose requests are effects of a driver."""

    def __init__(self, effects: Effects) -> None:
        super().__init__(verify=False)
        self.effects = effects

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        with self.effects.effect(f"{request.method} {request.url.path}"):
            return super().handle_request(request)


def count_writes(effects: Effects, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make writes and deletions beside the checkpoint effects of a driver."""
    for name in ("write", "delete"):
        original = getattr(Checkpoint, name)

        def wrapped(self: Checkpoint, path: str, *more: Any, original: Any = original, name: str = name) -> None:
            with effects.effect(f"{name} {path}"):
                original(self, path, *more)

        monkeypatch.setattr(Checkpoint, name, wrapped)


class Query:
    """A query that runs its batches as Spark does. Rows below the pinned watermark of their batch are late."""

    def __init__(self, runs: Runs) -> None:
        self.runs = runs
        self.decisions: dict[int, tuple[int | None, list[tuple[str, int]], list[tuple[str, int]]]] = {}
        self.attempts = 0

    @staticmethod
    def rows(batch_id: int) -> list[tuple[str, int]]:
        """Return rows of two substreams, one of which is behind; from the third batch on, one row is late."""
        max_event_time = (batch_id + 2) * STEP
        return [
            ("a", max_event_time),
            ("behind", max_event_time - STEP // 2),
            *([("a", max_event_time - 2 * STEP)] if batch_id > 1 else []),
        ]

    def run(self, run: Run) -> None:
        """Run every batch that Spark has not committed."""
        commits = self.runs.directory / "commits"
        for batch_id in range(BATCHES):
            if not (commits / str(batch_id)).exists():
                self._batch(run, batch_id)
                (commits / str(batch_id)).write_text("v1\n{}")

    def _batch(self, run: Run, batch_id: int) -> None:
        opened = run.begin(batch_id)
        folded = self._classify(opened, batch_id)
        run.report(opened, folded)
        run.commit(opened, folded)

    def _classify(self, opened: OpenBatch, batch_id: int) -> Fold:
        pinned_watermark = opened.stored.pinned_watermark
        late = [
            (name, time)
            for name, time in self.rows(batch_id)
            if pinned_watermark is not None and time < pinned_watermark
        ]
        on_time = [row for row in self.rows(batch_id) if row not in late]
        decisions = pinned_watermark, on_time, late
        assert self.decisions.setdefault(batch_id, decisions) == decisions, (
            "the replay must classify the rows as before"
        )
        self.attempts += 1
        names = sorted({name for name, _ in on_time + late})
        none = [0] * len(names)
        counts = [[sum(row[0] == name for row in rows) for name in names] for rows in (on_time + late, late)]
        max_event_times: list[int | None] = [max(time for of, time in on_time + late if of == name) for name in names]
        return Fold(names, max_event_times, counts[0], none, counts[1], none, none)


def overtake(own: LocalCoordinator, step: int) -> None:
    """Advance the job's coalesced watermark while the driver is down, by a report of another reporter."""
    job = own.job()
    operate(job, "POST", ":report", {"substreams": ["x"], "max_event_times": [step * STEP]})
    queries = [row["query"] for row in job.queries() if row["query"]]
    names = [row["substream"] for row in job.substreams() if row["query"] == "q"]
    if queries and names:
        operate(job, "POST", "/substreams:idle", {"query": "q", "substreams": names})


def points(own: LocalCoordinator, directory: Path, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Run the query once without a crash; return its points."""
    effects = Effects()
    with monkeypatch.context() as patch:
        count_writes(effects, patch)
        config = limiting_lag(LAG)
        runs = Runs(directory, clock)
        query = Query(runs)
        query.run(runs.run(own.job(config=config, transport=Transport(effects))))
    own.empty()
    assert effects.points > 30
    return effects.named


def test_a_crash_at_any_point_loses_and_repeats_nothing(
    own: LocalCoordinator, tmp_path: Path, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each row is classified in one way and counted once. W never passes an open batch."""
    every = points(own, tmp_path / "none", clock, monkeypatch)
    replays = 0
    for fatal, name in enumerate(every):
        own.empty()
        runs = Runs(tmp_path / str(fatal), clock)
        query = Query(runs)
        config = limiting_lag(LAG)
        effects = Effects(fatal)
        with monkeypatch.context() as patch, suppress(DriverCrash):
            count_writes(effects, patch)
            query.run(runs.run(own.job(config=config, transport=Transport(effects))))
        assert effects.dead, name
        job = own.job(config=config)
        job.ensure_job()
        overtake(own, BATCHES + 10)
        check_open_batch(job.status(), job.queries(), name)
        query.run(runs.run(job))
        check_accounts(query, job.status()["rows"], name)
        replays += query.attempts > BATCHES
    assert replays > len(every) // 4


def check_open_batch(status: dict[str, Any], queries: list[dict[str, Any]], point: str) -> None:
    """Check that W does not pass the pinned watermark of an open batch."""
    for query in queries:
        if query["batch_open"]:
            assert status["watermark"] == query["pinned_watermark"], point


def check_accounts(query: Query, rows: dict[str, int], point: str) -> None:
    """Check that every row was classified in one way and that the job counted it once."""
    decisions = [query.decisions[batch_id] for batch_id in range(BATCHES)]
    for batch_id, (_, on_time, late) in enumerate(decisions):
        assert sorted(on_time + late) == sorted(query.rows(batch_id)), point
    assert rows["on_time"] == sum(len(on_time) for _, on_time, _ in decisions), point
    assert rows["late"] == sum(len(late) for _, _, late in decisions), point
