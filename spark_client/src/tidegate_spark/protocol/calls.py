"""The calls about the batches and heartbeats of one run: one procedure for each call of the API."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tidegate_spark.protocol.coordinator import Answer, Body, Coordinator, ProcessingTime
from tidegate_spark.protocol.effects import Procedure, ReadQueryId
from tidegate_spark.protocol.reporter import batch_reference
from tidegate_spark.protocol.retry import ONE_ATTEMPT, RetryPolicy, outage_since
from tidegate_spark.protocol.settings import QuerySettings


@dataclass(frozen=True, slots=True)
class Run:
    """Identifies the caller: the query's checkpoint and the current run."""

    query_id: str
    run_id: str


class QueryCalls:
    """The calls of one run of a query."""

    def __init__(self, settings: QuerySettings, run_id: str, coordinator: Coordinator) -> None:
        self._query, self._kept, self._run_id = settings.query, settings.pinned_watermarks.kept, run_id
        self._coordinator = coordinator
        self._query_id: str | None = None

    def identify(self, query_id: str) -> None:
        """Set the query id, which this process may not be able to read from the checkpoint."""
        self._query_id = query_id

    def run(self) -> Procedure[Run]:
        """Return the identification of this run."""
        if self._query_id is None:
            self._query_id = yield ReadQueryId()
        return Run(self._query_id, self._run_id)

    def batch_reference(self, batch_id: int) -> Procedure[dict[str, Any]]:
        """Return the reference to a batch in a report."""
        run = yield from self.run()
        return batch_reference(self._query, asdict(run), batch_id)

    def begin(
        self,
        batch_id: int,
        pinned_watermark: Mapping[str, int | None],
        complete_at: ProcessingTime | None,
        policy: RetryPolicy,
    ) -> Procedure[Answer]:
        """Begin a batch.

        Args:
            batch_id: The batch.
            pinned_watermark: The stored ``pinned_watermark``; empty if none is stored.
            complete_at: Input up to this time is in this batch or an earlier one; None if not known.
            policy: How long to try.
        """

        def body(now: ProcessingTime) -> Body:
            age_ms = None if complete_at is None else complete_at.age_ms(now)
            return {"pinned_watermarks_to_keep": self._kept, "input_age_ms": age_ms, **pinned_watermark}

        return self._call("PUT", batch_id, "", body, policy)

    def report(self, batch_id: int, reports: Iterable[Body], policy: RetryPolicy) -> Procedure[None]:
        """Stage reports of an open batch. If it raises, some of them may be staged."""
        coordinator, batch = self._coordinator, (yield from self.batch_reference(batch_id))
        for columns in reports:
            body = {**columns, "batch": batch, "watermark_token": coordinator.watermark_token}
            began = coordinator.clock.monotonic()
            try:
                coordinator.keep_token((yield from coordinator.call("POST", ":report", body, policy)))
            finally:
                coordinator.waited_s += outage_since(began, coordinator.clock)

    def commit(self, batch_id: int, rows: Body | None, reported: int | None, policy: RetryPolicy) -> Procedure[Answer]:
        """Commit a batch, with its ``rows`` by class and the number of ``reported`` substreams."""
        body = {"rows": rows, "reported": reported}
        return self._call("POST", batch_id, ":commit", lambda _: body, policy)

    def heartbeat(self, age_s: float, after_batch: int | None) -> Procedure[Answer]:
        """Report once that the query was caught up ``age_s`` seconds ago; the next heartbeat has newer evidence."""
        coordinator, run = self._coordinator, (yield from self.run())
        evidence = {"observed_ms": coordinator.observed_ms(age_s), "after_batch": after_batch}
        body = self._with_caller(run, coordinator.waited_s, evidence)
        answer = yield from coordinator.call("POST", f"/queries/{self._query}:heartbeat", body, ONE_ATTEMPT)
        coordinator.keep_token(answer)
        return answer

    def _with_caller(self, run: Run, waited_s: float, body: Body) -> Body:
        token, waited_ms = self._coordinator.watermark_token, int(1000 * waited_s)
        return {**asdict(run), "watermark_token": token, "waited_ms": waited_ms, **body}

    def _call(
        self, method: str, batch_id: int, verb: str, body: Callable[[ProcessingTime], Body], policy: RetryPolicy
    ) -> Procedure[Answer]:
        """Make a call that the query waits for; ``body`` is called with the time of each attempt."""
        coordinator, run = self._coordinator, (yield from self.run())
        began = coordinator.clock.monotonic()

        def attempt() -> Body:
            waited_s = coordinator.waited_s + outage_since(began, coordinator.clock)
            return self._with_caller(run, waited_s, body(ProcessingTime(coordinator.clock.time(), waited_s)))

        try:
            path = f"/queries/{self._query}/batches/{batch_id}{verb}"
            answer = yield from coordinator.call(method, path, attempt, policy)
        finally:
            coordinator.waited_s += outage_since(began, coordinator.clock)
        coordinator.keep_token(answer)
        return answer
