"""The source of markers. Its offset is the watermark, and it has one row whenever the watermark has moved.

Between two batches, Spark asks the reader in the driver for the latest offset. The earlier batch is then finished, and
the reader reports it (:mod:`tidegate_spark.native.finished`).
"""

import json
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from tidegate_spark.batch import EPOCH
from tidegate_spark.clock import SYSTEM_CLOCK
from tidegate_spark.config import JobConfig, longest_lag_ms
from tidegate_spark.errors import InvalidUsage, JobDeleted, Refused, TidegateError
from tidegate_spark.logs import HEARTBEATS_FAIL, FailureLog, QueryLog
from tidegate_spark.native.finished import CheckResult, FinishedBatches
from tidegate_spark.native.folding import TASK_SETTINGS, another_checkpoint, documents_of
from tidegate_spark.native.listener import CAUGHT_UP, check_trigger
from tidegate_spark.protocol.checkpoint import Checkpoint
from tidegate_spark.protocol.choices import QueryChoices
from tidegate_spark.protocol.connection import JobConnection
from tidegate_spark.protocol.evidence import ALL_CAUGHT_UP
from tidegate_spark.protocol.fold import slot_of
from tidegate_spark.protocol.retry import OnOutage
from tidegate_spark.protocol.session import DriverSession
from tidegate_spark.protocol.settings import QuerySettings
from tidegate_spark.windows.markers import RUNS_TO_THE_END, WatermarkReader

HEARTBEAT_S = 1.0
PAUSE_FACTOR = 9
"""Pause after a check that finds no finished batches, as a multiple of the check's duration."""

DEDUPLICATION = "dedupeWithinWatermark"
"""Spark's name of the operator of ``dropDuplicatesWithinWatermark``, the only operator that uses the delay."""

POLLS_OF_A_RUN = 2
"""Number of times that an ``availableNow`` run reads the watermark, from its last batch with rows on."""

NO_ACCESS = frozenset({401, 403})
"""HTTP statuses of refusals that only another key ends. If the query went on, it would report nothing."""

_LATEST_MS = (datetime(9999, 12, 31, tzinfo=UTC) - EPOCH) // timedelta(milliseconds=1)
"""The start of the last day that Python can represent, in epoch milliseconds. Spark can represent later times."""


@dataclass(frozen=True)
class NativeInput:
    """One input of a native query, as JSON values.

    Attributes:
        input: Id of this input, unique to one run of the program.
        url: Address of the coordinator.
        job: Name of the job.
        config: Configuration for the creation of the job; None if the program has none.
        query: Name of the query.
        checkpoint: Location of the checkpoint.
        declared: Substreams that hold the watermark from the start.
        complete_batches: As in :class:`QuerySettings`.
        has_all_input: Whether each batch contains all input that existed when Spark planned it.
        is_idle_without_input: Whether Spark runs a batch whenever a source has input.
        frame: Size, slide and offset of the windows; None if the watermark moves by milliseconds.
        delay_ms: Delay of Spark's watermark below the highest event time of the markers.
        checks_delay: Whether the job's lag must not be longer than the delay if an operator uses the delay.
        retained: Minimum number of batches that Spark's log retains.
        choices: The fields of :class:`QueryChoices`.
        replaces_substreams: As in :meth:`Stream.start`.
    """

    input: str
    url: str
    job: str
    config: JobConfig | None
    query: str
    checkpoint: str
    declared: Sequence[str]
    complete_batches: bool
    has_all_input: bool
    is_idle_without_input: bool
    frame: Mapping[str, int] | None
    delay_ms: int
    checks_delay: bool
    retained: int
    choices: Mapping[str, Any]
    replaces_substreams: bool


class Marker(InputPartition):
    """The row that moves Spark's watermark to ``watermark_ms``."""

    def __init__(self, watermark_ms: int) -> None:
        self.watermark_ms = watermark_ms


class NativeReader(WatermarkReader):
    """A reader of markers in executors, which also reads the watermark and reports in the driver."""

    def __init__(self, native: NativeInput, key: str | None, schema: StructType) -> None:
        self._native = native
        on_outage = OnOutage.of("continue")
        self._connection = JobConnection(native.url, native.job, key, native.config, on_outage, SYSTEM_CLOCK)
        frame = native.frame or {"size": 1, "slide": 1, "offset": 0}
        super().__init__(self._connection.reader_options | {name: str(value) for name, value in frame.items()})
        self._columns = schema.fieldNames()
        self._run = uuid.uuid4().hex
        self._finished: FinishedBatches | None = None
        log = QueryLog(native.job, native.query)
        self._failures = FailureLog(
            log, "the coordinator refuses finished batches", "the coordinator accepts finished batches again"
        )
        self._heartbeat_failures = FailureLog(log, *HEARTBEATS_FAIL)
        self._future_skew_ms: int | None = None
        self._slot: int | None = None
        self._returned: tuple[float | None, float | None] = (None, None)
        self._polls = POLLS_OF_A_RUN
        self._report_at = self._heartbeat_at = 0.0
        self._calls = 0

    def prepareForTriggerAvailableNow(self) -> None:
        """Prepare a run over the existing input. :meth:`latestOffset` reads the watermark after its batches."""
        self._available_now = True

    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:
        """Report finished batches, and return the watermark.

        Under ``availableNow``, the run follows the watermark until its own rows no longer move it. All other advances
        take effect in the next run.

        Raises:
            JobMissing: If the job does not exist, and there is no configuration to create it with.
            JobDeleted: If the job was deleted; the next start of the query creates it again.
            Refused: If the key may not report. The next run reports the finished batches.
            InvalidUsage: If the query has another checkpoint, another input has the same name, the trigger is not
                supported, or the columns differ from those of the previous run.
        """
        if self._available_now:
            result = self._report()
            if result.rows:
                self._polls = POLLS_OF_A_RUN
            if result.batches and self._polls:
                self._polls -= 1
                self._poll()
        else:
            # Report in every call: after the last batch of a stopped query there may be no other call.
            inactive = self._report_unless_paused()
            if self._is_poll_due():
                self._poll()
                if inactive:
                    self._send_heartbeat()
        self._returned = self._returned[1], time.time()
        self._calls += 1
        return self._offset_after(start)

    def _report_unless_paused(self) -> bool:
        """Report finished batches. Return whether it is certain that Spark has finished no batch."""
        began = time.monotonic()
        if began < self._report_at and not self._is_poll_due():
            return False
        inactive = self._report().inactive
        if inactive:
            # Spark waits while the client reads the file system.
            ended = time.monotonic()
            self._report_at = ended + PAUSE_FACTOR * (ended - began)
        return inactive

    def _offset_after(self, start: dict[str, Any] | None) -> dict[str, Any]:
        """Return the offset with the id of the run, so that each run begins with a marker.

        If a query has several watermarks, Spark discards them at the end of a run. In the next run, each is zero until
        a row sets it.
        """
        offset = super()._offset_after(start)
        return offset if offset["watermark"] is None else offset | {"run": self._run}

    def _closed_by(self, state: dict[str, Any]) -> int | None:
        watermark: int | None = state["watermark"]
        if self._native.frame is not None:
            watermark = super()._closed_by(state)
        elif watermark is not None:
            watermark -= 1  # Spark treats a row at its watermark as late
        return None if watermark is None else min(watermark, _LATEST_MS - self._native.delay_ms)

    # -- reports --------------------------------------------------------------------------------------------------

    def _report(self) -> CheckResult:
        finished = self._started()
        session = finished.session
        try:
            result = finished.report(self._calls)
            self._calls = 0
            if result.batches:
                self._check_name(session.checkpoint)
                self._check_delay(session)
                if self._task_settings(session) != (self._future_skew_ms, self._slot):
                    self._write_task_settings(session)
        except JobDeleted:
            raise
        except Refused as refusal:
            if refusal.status in NO_ACCESS:
                raise
            self._failures.failed(refusal)
            return CheckResult(True, False, False, False)
        if result.reported:
            self._failures.succeeded()
            session.run(session.protocol.adopt_choices())
        return result

    def _task_settings(self, session: DriverSession) -> tuple[int | None, int | None]:
        return session.protocol.batches.max_future_skew_ms, slot_of(session.protocol.registration.config)

    def _write_task_settings(self, session: DriverSession) -> None:
        self._future_skew_ms, self._slot = self._task_settings(session)
        settings = {"input": self._native.input, "max_future_skew_ms": self._future_skew_ms, "slot": self._slot}
        session.checkpoint.write(TASK_SETTINGS, settings)

    def _check_name(self, documents: Checkpoint) -> None:
        """Raise InvalidUsage if another input of the query uses the same name."""
        if (documents.read(TASK_SETTINGS) or {}).get("input") != self._native.input:
            raise InvalidUsage(
                f"Two calls of with_watermark() for this query have queryName={self._native.query!r}. Pass another "
                "name for each further input."
            )

    def _check_delay(self, session: DriverSession) -> None:
        """Raise InvalidUsage if an operator uses the delay, and the job's lag is longer.

        Spark would then forget a key while duplicates of its row are still on time.
        """
        config = session.protocol.registration.config
        if not self._native.checks_delay or not config:
            return
        lag_ms = longest_lag_ms(config)
        if lag_ms is not None and lag_ms <= self._native.delay_ms:
            return
        if DEDUPLICATION in Checkpoint(self._native.checkpoint).operators():
            lag = "no longest lag" if lag_ms is None else f"a lag of {timedelta(milliseconds=lag_ms)}"
            raise InvalidUsage(
                f"dropDuplicatesWithinWatermark() of {self._native.query!r} would keep on-time duplicates: the job has "
                f"{lag}, and the operator keeps keys for {timedelta(milliseconds=self._native.delay_ms)}, the longest "
                "lag in the config of connect(). Pass duplicates_within=... to with_watermark(): the longest time "
                "between two rows that are duplicates."
            )

    def _send_heartbeat(self) -> None:
        """Report that the query is caught up.

        Spark has run no batch since the previous call, so the trigger of the previous call found no new data. The
        heartbeat reports the end of the second-to-last call, because the trigger began after this time.
        """
        observed_at, _ = self._returned
        began = time.monotonic()
        if observed_at is None or began < self._heartbeat_at:
            return
        session = self._started().session
        protocol = session.protocol
        try:
            after_batch = session.run(protocol.registration.progress()).batch_id
            # Spark is also idle if a source has input, but less than the minimum for a batch (minOffsetsPerTrigger).
            evidence = ALL_CAUGHT_UP if self._native.is_idle_without_input else None
            session.run(protocol.heartbeat(time.time() - observed_at, after_batch, evidence))
        except JobDeleted:
            raise
        except TidegateError as error:
            self._heartbeat_failures.failed(error)
        else:
            self._heartbeat_failures.succeeded()
        ended = time.monotonic()
        # Spark waits for this call, so spend less than a tenth of the time on heartbeats.
        self._heartbeat_at = ended + max(HEARTBEAT_S, 10 * (ended - began))

    def _started(self) -> FinishedBatches:
        """Return the finished batches of the session; start the session in the first call.

        The process and the trigger are unknown until then.
        """
        if self._finished is None:
            native = self._native
            checkpoint = documents_of(native.checkpoint, native.query)
            if not checkpoint.started():
                raise another_checkpoint(native.checkpoint)
            if not RUNS_TO_THE_END:
                check_trigger(checkpoint)
            settings = QuerySettings(
                self._connection,
                native.query,
                tuple(native.declared),
                choices=QueryChoices(**native.choices),
                replaces_substreams=native.replaces_substreams,
                available_now=self._available_now,
                complete_batches=native.complete_batches,
                tells_output=True,
            )
            # An earlier run may have read other input, if an older checkpoint was restored after it.
            checkpoint.delete(CAUGHT_UP)
            session = DriverSession(settings, checkpoint)
            session.run(session.protocol.start(adopt=False))
            self._write_task_settings(session)
            self._finished = FinishedBatches(session, native.frame is None, native.retained, native.has_all_input)
        return self._finished

    # -- markers --------------------------------------------------------------------------------------------------

    def commit(self, end: dict[str, Any]) -> None:
        """End the pause between checks, because Spark has planned another batch."""
        self._report_at = 0.0

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return a marker if the watermark has moved."""
        self._report_at = 0.0
        watermark = end["watermark"]
        # Spark's watermark begins at the epoch, so a marker before the epoch would move nothing.
        return [Marker(watermark)] if start != end and watermark is not None and watermark > 0 else []

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """Return the row of a marker."""
        assert isinstance(partition, Marker)
        at = EPOCH + timedelta(milliseconds=partition.watermark_ms + self._native.delay_ms)
        event_time = self._native.choices["event_time"]
        yield tuple(at if name == event_time else None for name in self._columns)

    def stop(self) -> None:
        """Close the session, because the query has ended."""
        if self._finished is not None:
            self._finished.session.close()


class MarkerSource(DataSource):
    """A source of markers: rows of any schema in which all columns except the event time are null."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the source."""
        return "tidegate-native"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader."""
        native = NativeInput(**json.loads(self.options["native"]))
        return NativeReader(native, self.options.get("authorization_token"), schema)
