"""The calls for the batches and heartbeats of one run, with one procedure for each API call."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tidegate_spark.protocol.coordinator import Answer, Body, Coordinator, ProcessingTime
from tidegate_spark.protocol.effects import Procedure, ReadQueryId
from tidegate_spark.protocol.retry import ONE_ATTEMPT, RetryPolicy, outage_since
from tidegate_spark.protocol.settings import QuerySettings


class QueryCalls:
    """The calls of one run of a query."""

    def __init__(self, settings: QuerySettings, run_id: str, coordinator: Coordinator) -> None:
        self._query, self._kept, self._run_id = settings.query, settings.pinned_watermarks.kept, run_id
        self._coordinator = coordinator
        self._query_id: str | None = None

    def identify(self, query_id: str) -> None:
        """Set the query id, for a process that cannot read it from the checkpoint."""
        self._query_id = query_id

    def caller(self) -> Procedure[dict[str, str]]:
        """Return the fields of a request body that identify the caller: ``query_id`` and ``run_id``."""
        if self._query_id is None:
            self._query_id = yield ReadQueryId()
        return {"query_id": self._query_id, "run_id": self._run_id}

    def batch_reference(self, batch_id: int) -> Procedure[dict[str, Any]]:
        """Return the field ``batch`` of a report.

        A fold has one entry per substream, so all reports of a batch have partition 0.
        """
        caller = yield from self.caller()
        return {"query": self._query, **caller, "batch_id": batch_id, "partition": 0}

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
            pinned_watermark: The field ``pinned_watermark`` with the stored value; empty if none is stored.
            complete_at: Processing time up to which all input is in this batch or an earlier one; None if not known.
            policy: The retry policy.
        """

        def body(now: ProcessingTime) -> Body:
            age_ms = None if complete_at is None else complete_at.age_ms(now)
            return {"pinned_watermarks_to_keep": self._kept, "input_age_ms": age_ms, **pinned_watermark}

        return self._call("PUT", batch_id, "", body, policy)

    def report(self, batch_id: int, reports: Iterable[Body], policy: RetryPolicy) -> Procedure[None]:
        """Stage reports of an open batch. After an error, some reports may be staged."""
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
        """Report, in one attempt, that the query was caught up ``age_s`` seconds ago."""
        coordinator, caller = self._coordinator, (yield from self.caller())
        evidence = {"observed_ms": coordinator.observed_ms(age_s), "after_batch": after_batch}
        body = self._with_caller(caller, coordinator.waited_s, evidence)
        answer = yield from coordinator.call("POST", f"/queries/{self._query}:heartbeat", body, ONE_ATTEMPT)
        coordinator.keep_token(answer)
        return answer

    def _with_caller(self, caller: Body, waited_s: float, body: Body) -> Body:
        token, waited_ms = self._coordinator.watermark_token, int(1000 * waited_s)
        return {**caller, "watermark_token": token, "waited_ms": waited_ms, **body}

    def _call(
        self, method: str, batch_id: int, verb: str, body: Callable[[ProcessingTime], Body], policy: RetryPolicy
    ) -> Procedure[Answer]:
        """Make a call that the query waits for. ``body`` returns the body of an attempt at the given time."""
        coordinator, caller = self._coordinator, (yield from self.caller())
        began = coordinator.clock.monotonic()

        def attempt() -> Body:
            waited_s = coordinator.waited_s + outage_since(began, coordinator.clock)
            return self._with_caller(caller, waited_s, body(ProcessingTime(coordinator.clock.time(), waited_s)))

        try:
            path = f"/queries/{self._query}/batches/{batch_id}{verb}"
            answer = yield from coordinator.call(method, path, attempt, policy)
        finally:
            coordinator.waited_s += outage_since(began, coordinator.clock)
        coordinator.keep_token(answer)
        return answer
