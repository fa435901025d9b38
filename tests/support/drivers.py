"""A driver without Spark: it runs the steps of a batch with the client's protocol."""

import json
from functools import partial
from pathlib import Path
from typing import TypeVar

from tests.support.clock import VirtualClock
from tidegate_spark import Job
from tidegate_spark.protocol.batches import OpenBatch
from tidegate_spark.protocol.checkpoint import Checkpoint
from tidegate_spark.protocol.choices import QueryChoices
from tidegate_spark.protocol.effects import Procedure, run
from tidegate_spark.protocol.evidence import BatchInput, Evidence
from tidegate_spark.protocol.fold import Fold
from tidegate_spark.protocol.retry import ONE_ATTEMPT
from tidegate_spark.protocol.session import DriverSession, perform_on_files
from tidegate_spark.protocol.settings import QuerySettings

Result = TypeVar("Result")
ALL_INPUT = Evidence()


def fold(**max_event_times: int) -> Fold:
    """Return the fold of one row for each substream."""
    names = list(max_event_times)
    none = [0] * len(names)
    return Fold(names, list(max_event_times.values()), [1] * len(names), none, none, none, none)


def on_files(checkpoint: Checkpoint, procedure: Procedure[Result]) -> Result:
    """Run a procedure that only reads and writes documents beside a checkpoint."""
    return run(procedure, partial(perform_on_files, checkpoint))


class Runs:
    """The runs of a query on one checkpoint."""

    def __init__(self, directory: Path, clock: VirtualClock) -> None:
        self.directory, self.clock = directory, clock
        (directory / "offsets").mkdir(parents=True)
        (directory / "commits").mkdir()
        (directory / "metadata").write_text('{"id": "checkpoint"}')

    def plan(self, batch_id: int) -> None:
        """Write the batch to Spark's offset log, unless it is there already."""
        planned = self.directory / "offsets" / str(batch_id)
        if not planned.exists():
            planned.write_text(f"v1\n{json.dumps({'batchTimestampMs': self.clock.now_ms()})}\n-")

    def run(
        self,
        job: Job,
        query: str = "q",
        complete_batches: bool = False,
        owns_files: bool = True,
        choices: QueryChoices | None = None,
        replaces_substreams: bool = False,
        available_now: bool = False,
        declared: tuple[str, ...] = (),
        tells_output: bool = False,
    ) -> "Run":
        """Start the query."""
        settings = QuerySettings(
            job.connection,
            query,
            declared,
            complete_batches=complete_batches,
            available_now=available_now,
            choices=choices,
            replaces_substreams=replaces_substreams,
            tells_output=tells_output,
        )
        session = DriverSession(settings, Checkpoint(str(self.directory)), owns_files)
        session.run(session.protocol.start())
        return Run(self, session)


class Run:
    """One start of the query."""

    def __init__(self, runs: Runs, session: DriverSession) -> None:
        self.runs, self.session = runs, session

    def begin(
        self, batch_id: int, evidence: Evidence | None = ALL_INPUT, partitions: frozenset[str] = frozenset()
    ) -> OpenBatch:
        """Plan and begin a batch."""
        self.runs.plan(batch_id)
        return self.session.run(self.session.protocol.begin(batch_id, BatchInput(evidence, partitions)))

    def report(self, opened: OpenBatch, fold: Fold) -> None:
        """Report an open batch."""
        self.session.run(self.session.protocol.report(opened, fold))

    def commit(self, opened: OpenBatch, fold: Fold) -> None:
        """Commit an open batch."""
        self.session.run(self.session.protocol.commit(opened, fold))

    def batch(self, batch_id: int, evidence: Evidence | None = ALL_INPUT, /, **max_event_times: int) -> OpenBatch:
        """Run a whole batch with one row for each substream."""
        opened = self.begin(batch_id, evidence)
        self.report(opened, fold(**max_event_times))
        self.commit(opened, fold(**max_event_times))
        return opened

    def beat(self, after_batch: int | None, age_s: float = 0.0, evidence: Evidence | None = ALL_INPUT) -> None:
        """Send a heartbeat."""
        protocol = self.session.protocol
        self.session.run(protocol.heartbeat(age_s, after_batch, evidence))

    def flush(self) -> bool:
        """Try once to report the backlog; return whether it is empty."""
        return self.session.run(self.session.protocol.backlog.flush(ONE_ATTEMPT))
