"""The function that Spark calls for every batch.

begin and pin → executors fold and report (staged) → split at the pin → the user's function → late rows → commit.

Invariants:

1. A batch is judged by one pin for ever. The pin is written beside the checkpoint before a row is judged by it.
2. A row is on time, late, or without an event time; none is in two of these, none in no one.
3. What the batch reported counts only once everything the user does with it has returned.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from pyspark.sql import DataFrame

from tidegate_spark.batch import Batch, Committed, Holder
from tidegate_spark.coordinator import Coordinator
from tidegate_spark.errors import JobMissing
from tidegate_spark.fold import Columns, is_late, report
from tidegate_spark.pins import KeptPin, Pins
from tidegate_spark.reporter import Reporter
from tidegate_spark.rules import Rules

log = logging.getLogger("tidegate")

BatchFunction = Callable[[DataFrame, Batch], Any]
NullEventTime = Literal["late", "on_time"]


@dataclass
class Hook:
    """One start of one query. ``run_id`` tells it from every other start."""

    coordinator: Coordinator
    rules: Rules | None
    declared: tuple[str, ...]
    query: str
    run_id: str
    pins: Pins
    columns: Columns
    function: BatchFunction
    late_function: BatchFunction | None
    null_event_time: NullEventTime
    persist: bool
    report_tasks: int
    on_commit: Callable[[Committed], Any] | None
    tops: dict[str, int] = field(default_factory=dict)
    state_epoch: str | None = None

    def announce(self) -> None:
        """The job is there after this, and knows the substreams that are to hold it from the start.

        Those that this run has seen already are among them, with how far they had come, in case the job was lost.
        """
        self.coordinator.ensure_job(self.rules)
        names = list(dict.fromkeys([*self.declared, *self.tops]))
        if names:
            self.coordinator.declare(self.query, names, self.tops)

    def run(self) -> dict[str, str]:
        """Who speaks, in the coordinator's terms."""
        return {"query_id": self.pins.query_id, "run_id": self.run_id}

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        began = time.monotonic()
        run = self.run()
        batch = self._begin(run, batch_id)
        if self.persist:
            df = df.persist()
        try:
            account = report(df, self.columns, batch.pin, self.report_tasks, self._reporter(run, batch))
            self.coordinator.waited_s += account.waited_s
            late, null_event_time = sum(account.late), sum(account.null_event_time)
            self._split(df, batch, late + (null_event_time if self.null_event_time == "late" else 0))
        finally:
            if self.persist:
                df.unpersist()
        answer = self.coordinator.commit(self.query, run, batch_id, account.document())
        for name, top in account.tops.items():
            self.tops[name] = max(top, self.tops.get(name, top))
        if self.on_commit is not None:
            self.on_commit(
                Committed(
                    batch, sum(account.on_time), late, null_event_time, answer["watermark"], Holder.of(answer),
                    time.monotonic() - began,
                )
            )  # fmt: skip

    def _warn_of_another_checkpoint(self, run: dict[str, str]) -> None:
        """A query that starts over reads rows that the job has long counted as complete: they will be late."""
        for known in self.coordinator.queries():
            if known["query"] == self.query and known["query_id"] != run["query_id"]:
                log.warning(
                    "Query %s has run on another checkpoint before (%s). The job's watermark stays where that one "
                    "brought it, so what is read again from below it is late; to begin anew, use another job.",
                    self.query,
                    known["query_id"],
                )

    def _begin(self, run: dict[str, str], batch_id: int) -> Batch:
        kept = self.pins.read(batch_id)
        if self.coordinator.watermark_token is None:
            before = kept or self.pins.read(batch_id - 1)
            self.coordinator.watermark_token = before.watermark_token if before else None
        try:
            if batch_id == 0 and kept is None:
                self._warn_of_another_checkpoint(run)
            begun = self.coordinator.begin(self.query, run, batch_id, kept, self.pins.kept)
        except JobMissing:
            if self.rules is None:
                raise
            log.warning("The coordinator does not know job %s any more; creating it again.", self.coordinator.job)
            self.announce()
            begun = self.coordinator.begin(self.query, run, batch_id, kept, self.pins.kept)
        self._look_after(begun)
        if kept is None:
            self.pins.write(batch_id, KeptPin(begun["pin"], begun["watermark_token"]))
        return Batch(
            batch_id, pin=begun["pin"], watermark=begun["watermark"], job=self.coordinator.job, query=self.query,
            replayed=begun["replayed"] or kept is not None,
        )  # fmt: skip

    def _look_after(self, begun: dict[str, Any]) -> None:
        """What a begin tells beside the pin: a job that was lost and made again, a query that nobody expected."""
        if begun["joined"]:
            log.warning(
                "Query %s joins job %s at the watermark %s: what it has from below that is late. Rules with "
                "expected_queries would have made the job wait for it.",
                self.query, self.coordinator.job, begun["coalesced"],
            )  # fmt: skip
        if self.state_epoch not in (None, begun["state_epoch"]) and self.tops:
            log.warning("The coordinator had lost job %s; telling it again what it knew.", self.coordinator.job)
            self.coordinator.declare(self.query, list(self.tops), self.tops)
        self.state_epoch = begun["state_epoch"]

    def _reporter(self, run: dict[str, str], batch: Batch) -> Reporter:
        return Reporter(
            self.coordinator.url,
            self.coordinator.report_path(),
            self.coordinator.headers,
            {"query": self.query, **run, "batch_id": int(batch)},
            self.coordinator.watermark_token or "",
            self.coordinator.patience,
        )

    def _split(self, df: DataFrame, batch: Batch, set_aside: int) -> None:
        """Gives the user's functions their rows; the late one only where there are any."""
        event_time = self.columns.time(df)
        late = is_late(event_time, batch.pin)
        aside = event_time.isNull() | late if self.null_event_time == "late" else event_time.isNotNull() & late
        self.function(df.filter(~aside), batch)
        if not set_aside:
            return
        if self.late_function is not None:
            self.late_function(df.filter(aside), batch)
        else:
            log.warning(
                "%s: batch %d dropped its late rows and those without an event time, %d in all; late_to() keeps them.",
                self.query, batch, set_aside,
            )  # fmt: skip
