"""The driver of a query without Spark: what Spark does with a checkpoint and a batch, around the client's protocol."""

import json
from pathlib import Path

from tests.support.clock import VirtualClock
from tidegate_spark import Job
from tidegate_spark.checkpoint import Checkpoint
from tidegate_spark.choice import Choice
from tidegate_spark.delivery import Delivery, Opened, Settles
from tidegate_spark.fold import Fold
from tidegate_spark.pinned_watermarks import PinnedWatermarks


def fold(**max_event_times: int) -> Fold:
    """Return the fold of one row for each substream."""
    names = list(max_event_times)
    none = [0] * len(names)
    return Fold("by row", names, list(max_event_times.values()), [1] * len(names), none, none, none, none)


class Runs:
    """The runs of a query on one checkpoint."""

    def __init__(self, directory: Path, clock: VirtualClock) -> None:
        self.directory, self.clock = directory, clock
        (directory / "offsets").mkdir(parents=True)
        (directory / "commits").mkdir()
        (directory / "metadata").write_text('{"id": "checkpoint"}')

    def plan(self, batch_id: int) -> None:
        """Write the batch to Spark's log of offsets, unless it is there."""
        planned = self.directory / "offsets" / str(batch_id)
        if not planned.exists():
            planned.write_text(f"v1\n{json.dumps({'batchTimestampMs': self.clock.now_ms()})}\n-")

    def run(
        self,
        job: Job,
        query: str = "q",
        settles: Settles = "each batch",
        here: bool = True,
        choice: Choice | None = None,
        replaces_substreams: bool = False,
    ) -> "Run":
        """Start the query."""
        checkpoint = Checkpoint(str(self.directory))
        delivery = Delivery(
            job, query, (), checkpoint, PinnedWatermarks(checkpoint), settles, here, choice, replaces_substreams
        )
        delivery.start()
        return Run(self, delivery)


class Run:
    """One start of the query."""

    def __init__(self, runs: Runs, delivery: Delivery) -> None:
        self.runs, self.delivery = runs, delivery

    def begin(self, batch_id: int) -> Opened:
        """Plan and begin a batch."""
        self.runs.plan(batch_id)
        return self.delivery.begin(batch_id)

    def batch(self, batch_id: int, **max_event_times: int) -> Opened:
        """Run a whole batch with one row for each substream."""
        opened = self.begin(batch_id)
        self.delivery.report(opened, fold(**max_event_times))
        self.delivery.commit(opened, fold(**max_event_times))
        return opened

    def beat(self, after_batch: int | None, age_s: float = 0.0) -> None:
        """Send a heartbeat."""
        self.delivery.heartbeat(self.delivery.run(), age_s, after_batch)
