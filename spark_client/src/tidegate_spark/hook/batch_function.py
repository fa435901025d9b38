"""The function that Spark calls for every batch.

The function runs these steps:

1. Begin the batch, and store its pinned watermark.
2. Fold the batch, and report the fold.
3. Pass the on-time rows to the user's function or to the windows.
4. Pass the late rows to the late output.
5. Commit the batch. With windows, emit the windows that close, and tell that they are written.

Invariants:

1. All replays of a batch have the same pinned watermark, which is stored before the rows are classified.
2. Every row has exactly one class: on time, updated, late, future, or without an event time.
3. The reports of a batch become effective after its rows are handled. The user's functions have then returned, or the
   rows are in the state of the windows.
"""

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

from pyspark.errors import PythonException
from pyspark.sql import DataFrame

from tidegate_spark.batch import ROW_CLASSES, Batch, Committed, Holder
from tidegate_spark.columns import Columns
from tidegate_spark.errors import InvalidUsage, Refused, TidegateError
from tidegate_spark.hook.appends import TableAppends
from tidegate_spark.hook.classify import RowClassifier, RowRoute
from tidegate_spark.hook.delays import DelayMeasurement, DelayOrder, needs_delays
from tidegate_spark.hook.folding import FoldMethod, FullFold, Mode, PlainFold, on_driver, on_executors
from tidegate_spark.hook.handlers import BatchHandler, BatchRows, UserFunction, UserFunctionError, call_user
from tidegate_spark.hook.publishing import WatermarkPublisher
from tidegate_spark.protocol import retry
from tidegate_spark.protocol.batches import OpenBatch
from tidegate_spark.protocol.coordinator import Answer
from tidegate_spark.protocol.evidence import NOTHING_KNOWN, BatchOffsets
from tidegate_spark.protocol.fold import HIGHEST, Fold, slot_of
from tidegate_spark.protocol.reporter import Reporter
from tidegate_spark.protocol.reports import SUBSTREAMS_PER_CALL
from tidegate_spark.protocol.retry import RetryPolicy
from tidegate_spark.protocol.session import DriverSession
from tidegate_spark.sources.running import DriverEvidenceReader

REPORT_TASKS = 4
TASKS_PER_CORE = 2
RECORDS_PER_TASK = 1000
"""A batch with fewer records for each partition may get fewer partitions, but at least this many for each core."""

ATTEMPTS = 3
"""Number of batches in a row after which executors that cannot deliver their reports no longer try."""


@dataclass(frozen=True)
class BatchOptions:
    """The options of a batch; :class:`Stream` describes them."""

    late_function: UserFunction | None = None
    null_route: RowRoute = "late"
    future_route: RowRoute = "on_time"
    mode: Mode = "auto"
    persist: bool | None = None
    report_tasks: int = REPORT_TASKS
    show_progress: bool = False
    delays: DelayOrder | Literal["none"] | None = None
    on_commit: Callable[[Committed], Any] | None = None


@dataclass
class BatchFunction:
    """The batch function of one run of a query.

    Attributes:
        session: The session of the run.
        columns: The event time column and the substream columns.
        handler: The handler of the rows.
        options: The options of the stream.
        of_timestamps: Whether the event times are timestamps.
        appends: The appends of the functions to tables.
        publisher: The publisher of the watermark in tables; None if the query publishes none.
        evidence: The evidence of silence in the offsets of the batches; None under Spark Connect.
        may_have_fewer_tasks: Whether a small batch may have fewer tasks than Kafka has partitions.
    """

    session: DriverSession
    columns: Columns
    handler: BatchHandler
    options: BatchOptions
    of_timestamps: bool
    appends: TableAppends
    publisher: WatermarkPublisher | None = None
    evidence: DriverEvidenceReader | None = None
    may_have_fewer_tasks: bool = False
    _starts_plain: bool = True
    """Whether the next batch starts with the plain fold."""
    _substreams: int | None = None
    """Number of substreams in the batch before; None before the first batch."""
    _undelivered: int = 0
    """Number of batches in a row whose reports the executors could not deliver."""

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Process the rows ``df`` of a batch."""
        try:
            self._run(df, batch_id)
        except UserFunctionError as raised:
            raise raised.error from raised.error.__cause__
        except TidegateError as error:
            level = logging.INFO if self.session.is_stopped() else logging.ERROR
            self.session.log.log(level, "the batch failed: %s", error, extra={"batch": batch_id})
            # Spark prints the traceback of a failed batch three times. The message of a TidegateError is sufficient.
            raise error.with_traceback(None) from error.__cause__

    def _run(self, df: DataFrame, batch_id: int) -> None:
        began = time.monotonic()
        protocol = self.session.protocol
        batch_input = NOTHING_KNOWN if self.evidence is None else self.evidence.of_batch()
        self.session.calls.output_watermark = self.handler.written_before(batch_id)
        try:
            opened = self.session.run(protocol.begin(batch_id, batch_input))
        except Refused as refusal:
            if refusal.code != "job_complete" or self.handler.frame is None or not df.isEmpty():
                raise
            # After the end of the input, a batch without rows needs no begin.
            watermark = self.session.run(self.session.calls.coalesced_watermark())
            written = self.handler.end(df.sparkSession, protocol.batch_without_rows(batch_id, watermark), watermark)
            self.session.run(protocol.wrote(written, batch_id))
            self._publish(written)
            return
        df = self._with_fewer_tasks(df, batch_input.offsets)
        if self.options.persist:
            df = df.persist()
        try:
            classifier = self._classifier(opened)
            fold = self._fold(df, classifier, opened)
            rows = BatchRows(df, self.columns, classifier, fold, opened.batch)
            after_commit = self.handler.handle(rows)
            self._pass_on_late(rows)
        finally:
            if self.options.persist:
                unpersist(df)
        answer = self.session.run(protocol.commit(opened, fold))
        written = after_commit(None if answer is None else answer["coalesced_watermark"])
        # A late row may be in an overlapping window that still accepts it.
        has_updated = fold.count("updated") + fold.count("late") > 0
        self.session.run(protocol.wrote(written, batch_id, answer is not None, has_updated))
        if answer is not None:
            self._publish(answer["watermark"] if self.handler.frame is None else written)
        self._warn(rows, answer)
        self._announce_commit(self._committed(opened.batch, fold, answer, time.monotonic() - began))

    def _publish(self, written: int | None) -> None:
        if self.publisher is not None:
            incarnation = self.handler.incarnation or self.session.protocol.batches.incarnation
            self.publisher.offer(written, incarnation)

    def _with_fewer_tasks(self, df: DataFrame, offsets: BatchOffsets | None) -> DataFrame:
        """Return a batch of Kafka with fewer partitions if it has few records for each.

        Each partition of Kafka with records is a task in each use of the batch, and each task costs some milliseconds.
        All cores still have tasks.
        """
        counts = offsets.counts if offsets is not None and self.may_have_fewer_tasks else None
        if counts is None:
            return df
        cores = df.sparkSession.sparkContext.defaultParallelism
        tasks = max(TASKS_PER_CORE * cores, sum(counts) // RECORDS_PER_TASK)
        return df.coalesce(tasks) if tasks < sum(count > 0 for count in counts) else df

    def _classifier(self, opened: OpenBatch) -> RowClassifier:
        latest = opened.stored.latest_event_time
        return RowClassifier(
            opened.stored.pinned_watermark,
            HIGHEST if latest is None else min(latest, HIGHEST),
            self.options.null_route,
            self.options.future_route,
            "dropped" if self.options.late_function is None else "diverted",
            self.handler.frame,
            self.handler.lateness,
        )

    # -- folding --------------------------------------------------------------------------------------------------

    def _fold(self, df: DataFrame, classifier: RowClassifier, opened: OpenBatch) -> Fold:
        """Fold the batch, and stage the fold unless the batch continues without the coordinator."""
        delays, slot = self._delays(), slot_of(self.session.protocol.registration.config)
        found = None
        if self._starts_plain and delays is None:
            found = self._fold_by(PlainFold(self.columns, classifier, slot), df, opened)
        found = found or self._fold_by(FullFold(self.columns, classifier, slot, delays), df, opened)
        assert found is not None, "the full fold counts every row"
        fold, reported = found
        self._starts_plain = not (fold.count("late") or fold.count("updated") or fold.count("future"))
        self._substreams = len(fold.substream)
        if not reported:
            self.session.run(self.session.protocol.report(opened, fold))
        fold.check_size()
        return fold

    def _delays(self) -> DelayMeasurement | None:
        registration = self.session.protocol.registration
        order = self.options.delays or ("batch" if needs_delays(registration.config) else "none")
        if order == "none":
            return None
        progress = self.session.run(registration.progress())
        return DelayMeasurement.of(order, registration.config, dict(progress.max_event_times))

    def _fold_by(self, method: FoldMethod, df: DataFrame, opened: OpenBatch) -> tuple[Fold, bool] | None:
        """Return the fold, and whether the executors reported it; None if the plain fold does not suffice."""
        # One task suffices for a few substreams.
        tasks = self.options.report_tasks
        if self._substreams is not None:
            tasks = min(tasks, 1 + self._substreams // SUBSTREAMS_PER_CALL)
        if not (opened.acknowledged and self._executors_report()):
            folded = on_driver(df, method, tasks)
            return None if folded is None else (folded, False)
        try:
            found = on_executors(df, method, tasks, self._reporter(opened))
        except Exception as error:
            if self.options.mode == "auto" and not self.session.is_stopped():
                # The Python of the executors may be missing or another one. An error of the rows is raised again.
                self._undelivered = ATTEMPTS
                self._log_driver("failed", error)
                return self._fold_by(method, df, opened)
            if isinstance(error, PythonException) and "ModuleNotFoundError" in str(error):
                raise InvalidUsage(
                    "The Python of Spark's workers lacks a package that reports need. Set PYSPARK_PYTHON (or "
                    "spark.pyspark.python) to a Python with tidegate-spark, or choose reporting('driver')."
                ) from error
            raise
        if found is None:
            return None
        fold, reported, waited_s = found
        self.session.calls.waited_s += waited_s
        self._undelivered = 0 if reported else self._undelivered + 1
        if self._undelivered == ATTEMPTS and self.options.mode == "auto":
            self._log_driver("did not reach the coordinator")
        return fold, reported

    def _executors_report(self) -> bool:
        if self.options.mode == "auto":
            return (self._substreams or 0) > SUBSTREAMS_PER_CALL and self._undelivered < ATTEMPTS
        return self.options.mode == "executor"

    def _log_driver(self, what: str, error: Exception | None = None) -> None:
        self.session.log.warning(
            "the reports of executors %s, so the driver reports from now on. Executors need the package tidegate-spark "
            "and a connection to the coordinator. Call reporting('driver') if this is intended.",
            what,
            exc_info=error,
        )

    def _reporter(self, opened: OpenBatch) -> Reporter:
        connection = self.session.settings.connection
        return Reporter(
            connection.url,
            f"/v1/jobs/{connection.job}:report",
            connection.headers,
            self.session.run(self.session.calls.batch_reference(opened.batch_id)),
            self.session.calls.watermark_token or "",
            RetryPolicy(retry.SHORT_WAIT_S),
        )

    # -- rows and results -----------------------------------------------------------------------------------------

    def _pass_on_late(self, rows: BatchRows) -> None:
        late = rows.late()
        if late is not None and self.options.late_function is not None:
            call_user(self.options.late_function, late, self.appends.during(rows.batch, "late"))

    def _warn(self, rows: BatchRows, answer: Answer | None) -> None:
        # Without a limit for future event times, the numbers of a job may be in another unit than milliseconds.
        is_by_the_clock = self.of_timestamps or self.session.protocol.batches.max_future_skew_ms is not None
        dropped = rows.routed_late if self.options.late_function is None else {}
        warnings = self.session.row_warnings
        warnings.check(rows.batch.batch_id, rows.fold, is_by_the_clock, dropped)
        if answer is not None and is_by_the_clock:
            warnings.check_watermark(answer["watermark"], answer["now_ms"])

    def _committed(self, batch: Batch, fold: Fold, answer: Answer | None, seconds: float) -> Committed:
        return Committed(
            batch,
            **{row_class: fold.count(row_class) for row_class in ROW_CLASSES},
            watermark=batch.job_watermark if answer is None else answer["watermark"],
            now_ms=None if answer is None else answer["now_ms"],
            held_by=None if answer is None else Holder.of(answer),
            seconds=seconds,
            acknowledged=answer is not None,
            of_timestamps=self.of_timestamps,
        )

    def _announce_commit(self, committed: Committed) -> None:
        log, batch = self.session.log, committed.batch
        carried = {"batch": batch.batch_id, **committed.metrics()}
        log.info("%s", committed, extra=carried)
        try:
            if self.options.show_progress:
                print(f"{batch.query} {batch.batch_id}: {committed}", flush=True)
            if self.options.on_commit is not None:
                self.options.on_commit(committed)
        except Exception:
            # The batch is already committed, so a failure of the user's function must not fail it.
            log.exception("the function of on_commit() failed; the batch is committed", extra=carried)


def unpersist(df: DataFrame) -> None:
    """Unpersist a batch, even if the query is being stopped.

    Spark's ``stop()`` interrupts the query's thread in the JVM, in which the calls of this thread run. A call that
    waits, as this one does, would then raise an error, and the batch would not be committed. The calls of another
    thread run in another thread in the JVM.
    """
    with ThreadPoolExecutor(1) as other:
        other.submit(df.unpersist).result()
