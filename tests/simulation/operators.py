"""An operator of a simulation, whose actions are faults: each has a number and can be left out."""

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from tests.simulation.coordinator import Coordinator
from tests.simulation.source import LAG_MS
from tests.simulation.spark import Cluster, Query
from tidegate.domain import commands
from tidegate.domain.errors import DomainError
from tidegate.domain.views import substreams

PAUSE_MS = 20_000
IDLE_TIMEOUT_MS = 60_000
LATEST_LOSS_MS = 40_000
NEVER_MS = 10_000_000
"""A limit of a policy that does not act in a simulation, so that the policy behaves like its lag."""

POLICIES: tuple[Mapping[str, Any], ...] = (
    {"type": "limiting_lag", "lag_ms": LAG_MS},
    {"type": "limiting_lag", "lag_ms": LAG_MS // 2},
    {"type": "limiting_lag", "lag_ms": 2 * LAG_MS},
    {"type": "limiting_lag_and_delay", "lag_ms": LAG_MS, "max_delay_ms": NEVER_MS},
    {"type": "limiting_lag_and_lull", "lag_ms": LAG_MS, "max_lull_ms": NEVER_MS},
)
THROTTLES: tuple[Mapping[str, Any], ...] = ({"type": "none"}, {"type": "frame", "size_ms": 60_000})


class Operator:
    """An operator, who acts at random times.

    Args:
        random: The source of the actions.
        cluster: The queries share this.
        coordinator: The coordinator.
        queries: The queries.
    """

    def __init__(self, random: Random, cluster: Cluster, coordinator: Coordinator, queries: list[Query]) -> None:
        self._random, self._cluster, self._coordinator, self._queries = random, cluster, coordinator, queries
        self._actions: Mapping[str, Callable[[], None]] = {
            "operator holds or releases": self._hold_or_release,
            "operator evicts": self._evict,
            "operator declares idle": self._declare_idle,
            "operator changes the configuration": self._configure,
            "operator retires": self._retire,
            "operator resets": self._reset,
        }

    def work(self) -> None:
        """Act, and again after a pause."""
        for kind, act in self._actions.items():
            is_reached = self._coordinator.job is not None and not self._coordinator.is_away
            if is_reached and self._cluster.faults.happens(kind):
                try:
                    act()
                except DomainError as error:
                    self._cluster.observer.note(f"an operator is refused: {error.code}")
        self.read()
        self._cluster.loop.after(self._random.randrange(PAUSE_MS), self.work)

    def read(self) -> None:
        """Read the table of substreams."""
        job = self._coordinator.job
        if job is not None:
            rows = substreams(job, self._now_ms)
            self._cluster.observer.reads({(row.query, row.substream): row.max_event_time for row in rows})

    def stop(self) -> None:
        """Release all holds."""
        job = self._coordinator.job
        for name in list(job.holds) if job is not None else []:
            self._coordinator.apply(commands.release, name, self._now_ms)
            self._cluster.observer.releases()

    @property
    def _now_ms(self) -> int:
        return self._coordinator.now_ms

    # -- actions --------------------------------------------------------------------------------------------------

    def _hold_or_release(self) -> None:
        job, random, observer = self._coordinator.job, self._random, self._cluster.observer
        assert job is not None
        if job.holds:
            self._coordinator.apply(commands.release, next(iter(job.holds)), self._now_ms)
            observer.releases()
        elif job.watermark is not None:
            at_most, duration_ms = job.watermark + random.randrange(-60_000, 60_000), random.choice((None, 20_000))
            held = self._coordinator.apply(commands.hold, "audit", at_most, duration_ms, self._now_ms)
            observer.holds(at_most, held.state.coalesced_watermark, duration_ms)

    def _substream(self) -> tuple[str, str]:
        """Choose a substream, often one whose source has ended."""
        keys = [(query.name, name) for query in self._queries for name in query.sources]
        ended = [(query.name, name) for query in self._queries for name, s in query.sources.items() if s.is_ended]
        return self._random.choice(ended if ended and self._random.random() < 0.7 else keys)

    def _evict(self) -> None:
        query, name = self._substream()
        if self._coordinator.apply(commands.evict, query, [name], self._now_ms).applied:
            self._cluster.observer.excluded((query, name), is_evicted=True)

    def _declare_idle(self) -> None:
        query, name = self._substream()
        self._coordinator.apply(commands.idle, query, [name], self._now_ms)
        self._cluster.observer.excluded((query, name), is_evicted=False)

    def _configure(self) -> None:
        policy, throttle = self._random.choice(POLICIES), self._random.choice(THROTTLES)
        idle_timeout_ms = self._random.choice((None, None, IDLE_TIMEOUT_MS))
        changed = {"policy": policy, "throttle": throttle, "idle_timeout_ms": idle_timeout_ms}
        document = {**self._coordinator.document, **changed}
        self._coordinator.configure(document)
        self._cluster.observer.configured(document)

    def _retire(self) -> None:
        query = self._random.choice(self._queries).name
        successor = self._random.choice((None, query))
        self._coordinator.apply(commands.retire, query, successor, self._now_ms)
        self._cluster.observer.retired(query, is_evicted=successor is None)

    def _reset(self) -> None:
        self._coordinator.reset()
        self._cluster.observer.reset()
        if self._cluster.faults.happens("state lost after a reset"):
            self._cluster.loop.after(self._random.randrange(LATEST_LOSS_MS), self._cluster.lose_state)
