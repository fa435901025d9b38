"""An operator of a simulation, who sets and releases holds, and in a job with limits declares substreams idle."""

from tests.simulation.coordinator import Coordinator
from tests.simulation.spark import Cluster
from tidegate.domain import commands
from tidegate.domain.errors import DomainError

PAUSE_MS = 60_000


class Operator:
    """An operator, who acts at random times."""

    def __init__(self, cluster: Cluster, coordinator: Coordinator) -> None:
        self._cluster, self._coordinator = cluster, coordinator
        self._works = cluster.random.random() < 0.3

    def work(self) -> None:
        """Act, and again after a pause."""
        loop, random = self._cluster.loop, self._cluster.random
        if self._works:
            self._act()
            loop.after(random.randrange(PAUSE_MS), self.work)

    def stop(self) -> None:
        """Release all holds."""
        self._works = False
        job = self._coordinator.job
        for name in list(job.holds) if job is not None else []:
            self._coordinator.apply(commands.release, name, self._cluster.loop.now_ms)

    def _act(self) -> None:
        job, now_ms, random = self._coordinator.job, self._cluster.loop.now_ms, self._cluster.random
        if job is None or job.watermark is None or self._coordinator.is_away:
            return
        try:
            if job.holds:
                self._coordinator.apply(commands.release, next(iter(job.holds)), now_ms)
            else:
                at_most, duration_ms = job.watermark + random.randrange(-60_000, 60_000), random.choice((None, 20_000))
                self._coordinator.apply(commands.hold, "audit", at_most, duration_ms, now_ms)
                self._cluster.observer.note(f"an operator holds the watermark at {at_most}")
        except DomainError as error:
            self._cluster.observer.note(f"an operator is refused: {error.code}")
