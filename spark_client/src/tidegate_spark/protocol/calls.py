"""The calls for the batches and heartbeats of one run, with one procedure for each API call."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from tidegate_spark.logs import QueryLog
from tidegate_spark.protocol.coordinator import Answer, Body, Coordinator
from tidegate_spark.protocol.effects import Procedure, ReadQueryId
from tidegate_spark.protocol.evidence import BatchOffsets, Evidence, ProcessingTime
from tidegate_spark.protocol.pinned_watermarks import StoredPinnedWatermark
from tidegate_spark.protocol.retry import ONE_ATTEMPT, RetryPolicy, outage_since
from tidegate_spark.protocol.settings import QuerySettings

TABLES_PER_CALL = 20
"""Maximum number of tables that a call may tell versions of, and that the coordinator keeps for a query."""


class QueryCalls(Coordinator):
    """The calls of one run of a query, with the settings and the log of the query.

    Attributes:
        settings: The settings of the query.
        log: The log of the query.
        query_id: The id in the checkpoint, read by the first call. A process that cannot read the checkpoint sets it.
        output_watermark: The output watermark of the query: everything that its functions write for event times below
            it is written. None if nothing is written, or this process does not know it.
        told_output: The output watermark that the coordinator has, as far as this process knows.
        outputs: The latest versions of the tables that the query has written, as far as neither a begin nor a commit
            has told them.
    """

    def __init__(self, settings: QuerySettings, run_id: str) -> None:
        connection = settings.connection
        super().__init__(connection.url, connection.job, connection.on_outage.policy, connection.clock)
        self.settings, self.log = settings, QueryLog(connection.job, settings.query)
        self.query_id: str | None = None
        self.output_watermark: int | None = None
        self.told_output: int | None = None
        self.outputs: dict[str, str] = {}
        self._versions: dict[str, str] = {}
        self._run_id = run_id

    def caller(self) -> Procedure[dict[str, str]]:
        """Return the fields of a request body that identify the caller: ``query_id`` and ``run_id``."""
        if self.query_id is None:
            self.query_id = yield ReadQueryId()
        return {"query_id": self.query_id, "run_id": self._run_id}

    def batch_reference(self, batch_id: int) -> Procedure[dict[str, Any]]:
        """Return the field ``batch`` of a report.

        A fold has one entry per substream, so all reports of a batch have partition 0.
        """
        caller = yield from self.caller()
        return {"query": self.settings.query, **caller, "batch_id": batch_id, "partition": 0}

    def begin(
        self,
        batch_id: int,
        stored: StoredPinnedWatermark | None,
        evidence: Evidence | None,
        policy: RetryPolicy,
    ) -> Procedure[Answer]:
        """Begin a batch.

        Args:
            batch_id: Id of the batch.
            stored: The pinned watermark of the batch; None if none is stored.
            evidence: Evidence that the batch contributes. Evidence for some substreams is for :meth:`commit`: a client
                that commits the batch without their names would confirm all substreams.
            policy: The retry policy.
        """
        told = self._untold()

        def body(now: ProcessingTime) -> Body:
            at = None if evidence is None or evidence.substreams is not None else evidence.at
            age_ms = None if at is None else at.age_ms(now)
            fields = {"pinned_watermarks_to_keep": self.settings.pinned_watermarks.kept, "input_age_ms": age_ms}
            if self.settings.tells_output:
                fields["output_watermark"] = self.output_watermark
            fields |= self._outputs(told)
            return fields if stored is None else {**fields, "pinned_watermark": stored.pinned_watermark}

        answer = yield from self._call_about("PUT", batch_id, "", body, policy)
        # The coordinator takes no results at the pinned watermark or above for written.
        pinned, written = answer["pinned_watermark"], self.output_watermark
        self.told_output = None if pinned is None or written is None else min(written, pinned)
        if not answer["replayed"]:  # the coordinator may ignore a repetition
            self._acknowledge(told)
        return answer

    def report(self, batch_id: int, reports: Iterable[Body], policy: RetryPolicy) -> Procedure[None]:
        """Stage reports of an open batch. After an error, some reports may be staged."""
        batch = yield from self.batch_reference(batch_id)
        for columns in reports:
            body = {**columns, "batch": batch, "watermark_token": self.watermark_token}
            began = self.clock.monotonic()
            try:
                self.keep_token((yield from self.call("POST", ":report", body, policy)))
            finally:
                self.waited_s += outage_since(began, self.clock)

    def commit(
        self,
        batch_id: int,
        rows: Body | None,
        reported: int | None,
        policy: RetryPolicy,
        evidence: Evidence | None = None,
        offsets: BatchOffsets | None = None,
    ) -> Procedure[Answer]:
        """Commit a batch, with its ``rows`` by class and the number of ``reported`` substreams.

        If ``evidence`` names substreams, the batch is evidence of silence for these substreams only.
        """
        told = self._untold()

        def body(now: ProcessingTime) -> Body:
            fields: dict[str, Any] = {"rows": rows, "reported": reported, **self._outputs(told)}
            if offsets is not None:
                fields["offsets"] = asdict(offsets)
            if evidence is None or evidence.substreams is None or evidence.at is None:
                return fields
            return {**fields, "caught_up": sorted(evidence.substreams), "caught_up_age_ms": evidence.at.age_ms(now)}

        answer = yield from self._call_about("POST", batch_id, ":commit", body, policy)
        if answer["applied"]:
            self._acknowledge(told)
        return answer

    def wrote_table(self, table: str, version: str) -> Procedure[None]:
        """Tell the version of a table that the query has written, with the next call."""
        for versions in (self.outputs, self._versions):
            versions.pop(table, None)
            versions[table] = version
        yield from ()

    def tell_versions_again(self) -> None:
        """Tell the versions of all tables with the next call, because the coordinator may have lost them."""
        self.outputs = dict(self._versions)

    def _untold(self) -> dict[str, str]:
        return dict(list(self.outputs.items())[-TABLES_PER_CALL:])

    @staticmethod
    def _outputs(told: Mapping[str, str]) -> dict[str, Any]:
        """Return the field ``outputs`` of a body. Without versions, it is missing, as in an earlier version."""
        tables = [{"table": table, "version": version} for table, version in told.items()]
        return {"outputs": tables} if tables else {}

    def _acknowledge(self, told: Mapping[str, str]) -> None:
        self.outputs = {table: version for table, version in self.outputs.items() if told.get(table) != version}

    def heartbeat(
        self,
        age_s: float,
        after_batch: int | None,
        substreams: Sequence[str] | None = None,
        offsets: BatchOffsets | None = None,
        policy: RetryPolicy = ONE_ATTEMPT,
    ) -> Procedure[Answer]:
        """Report that the query (or these substreams) was caught up ``age_s`` seconds ago, and its output watermark.

        The call may tell the offsets of ``after_batch`` or of an earlier batch.
        """
        caller = yield from self.caller()
        about: dict[str, Any] = {"observed_ms": self.coordinator_ms(age_s), "after_batch": after_batch}
        if substreams is not None:
            about["caught_up"] = substreams
        if offsets is not None:
            about["offsets"] = asdict(offsets)
        told = self.output_watermark
        # The coordinator ignores them if it has a later batch, so the next begin tells them again.
        about |= self._outputs(self._untold())
        if self.settings.tells_output:
            about["output_watermark"] = told
        body = self._with_caller(caller, self.waited_s, about)
        answer = yield from self.call("POST", f"/queries/{self.settings.query}:heartbeat", body, policy)
        self.keep_token(answer)
        if told is not None:
            self.told_output = told if self.told_output is None else max(told, self.told_output)
        return answer

    def _with_caller(self, caller: Body, waited_s: float, body: Body) -> Body:
        return {**caller, "watermark_token": self.watermark_token, "waited_ms": int(1000 * waited_s), **body}

    def _call_about(
        self, method: str, batch_id: int, verb: str, body: Callable[[ProcessingTime], Body], policy: RetryPolicy
    ) -> Procedure[Answer]:
        """Make a call that the query waits for. ``body`` returns the body of an attempt at the given time."""
        caller = yield from self.caller()
        began = self.clock.monotonic()

        def attempt() -> Body:
            waited_s = self.waited_s + outage_since(began, self.clock)
            return self._with_caller(caller, waited_s, body(ProcessingTime(self.clock.time(), waited_s)))

        try:
            path = f"/queries/{self.settings.query}/batches/{batch_id}{verb}"
            answer = yield from self.call(method, path, attempt, policy)
        finally:
            self.waited_s += outage_since(began, self.clock)
        self.keep_token(answer)
        return answer
