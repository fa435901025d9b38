"""The registration of a query with the coordinator, and the restoration of lost state.

The answers of the coordinator show which state it has lost. If the coordinator has lost everything (an emptied Redis),
the client creates the job again and declares the query's substreams with their max event times. If the coordinator has
lost the end of its log, the client reports the max event times with the next batch. The client does not restore a job
that an operator reset.
"""

from collections.abc import Mapping

from tidegate_spark.config import JobConfig
from tidegate_spark.errors import JobDeleted, JobMissing
from tidegate_spark.protocol.calls import QueryCalls
from tidegate_spark.protocol.coordinator import Answer
from tidegate_spark.protocol.effects import HasCheckpoint, Locked, Procedure
from tidegate_spark.protocol.evidence import BatchOffsets
from tidegate_spark.protocol.progress import Progress
from tidegate_spark.protocol.reports import reports_of_max_event_times
from tidegate_spark.protocol.retry import RetryPolicy

STARTED = "the query has started"
NEW_PARTITIONS = "the source has these partitions"
IDLE_TIMEOUT = "idle_timeout_ms"


class BegunBatches:
    """The batches that a run has begun, and what the answers prove about the declaration of the run.

    Each answer shows the latest batch that the coordinator knew before the call. A coordinator that has lost the end of
    its log may have lost the declaration, too. It has the declaration if it knew the batch that this run has begun
    before the one that begins, or if it has committed this batch since this run first began it: both follow the
    declaration in the log.
    """

    def __init__(self) -> None:
        self.latest: int | None = None
        self.before: int | None = None
        self.was_committed = False  # whether the latest batch was committed when this run first began it

    def prove_declaration(self, batch_id: int, previous_batch_id: int | None, previous_open: bool) -> bool:
        """Record a begin, and return whether its answer proves that the coordinator has the declaration.

        Args:
            batch_id: The batch that began. A run may begin its latest batch again.
            previous_batch_id: The latest batch that the coordinator knew. None if it knew no batch of the checkpoint.
            previous_open: Whether that batch was open.
        """
        is_committed = previous_batch_id == batch_id and not previous_open
        if batch_id != self.latest:
            self.latest, self.before, self.was_committed = batch_id, self.latest, is_committed
        if self.before is not None and previous_batch_id is not None and self.before <= previous_batch_id:
            return True
        return is_committed and not self.was_committed


class QueryRegistration:
    """The registration of one query, which is restored after the coordinator has lost it.

    Args:
        calls: The calls of the run.
        owns_files: Whether this process writes the files beside the checkpoint. Under Spark Connect, the process of the
            hook writes them. The client's process then reads the progress again before it restores state.

    Attributes:
        partitions: The substreams that are partitions of the source in the latest batch, also those without a row.
    """

    def __init__(self, calls: QueryCalls, owns_files: bool) -> None:
        self._calls, self._settings, self._log = calls, calls.settings, calls.log
        self._owns_files = owns_files
        self._progress: Progress | None = None
        self._announced_in: str | None = None
        self.partitions = frozenset[str]()
        self._declared_partitions = frozenset[str]()
        self.begun = BegunBatches()
        self._config: JobConfig = {}
        # A job that was reset, or deleted and created again, has another state epoch. Its revision may be the same.
        self._config_version: tuple[str, int] | None = None

    @property
    def config(self) -> JobConfig:
        """The job's configuration: the coordinator's if known, else the program's."""
        return self._config or self._settings.connection.config or {}

    def progress(self) -> Procedure[Progress]:
        """Return the progress of the query."""
        if self._progress is None:
            loaded = yield from Progress.load(self._settings.query, self._calls.job)
            self._progress = self._progress or loaded
        return self._progress

    # -- announcing -----------------------------------------------------------------------------------------------

    def load_token(self) -> Procedure[None]:
        """Load the latest stored watermark token, unless this run has received one."""
        if self._calls.watermark_token is None:
            yield Locked(self._load_token())

    def _load_token(self) -> Procedure[None]:
        progress = yield from self.progress()
        newest = yield from self._settings.pinned_watermarks.newest()
        token = progress.watermark_token
        if newest is not None and (progress.batch_id is None or newest[0] > progress.batch_id):
            token = newest[1].watermark_token
        self._calls.watermark_token = token

    def ensure_announced(self, policy: RetryPolicy) -> Procedure[None]:
        """Announce the query unless this process has announced it."""
        yield from self.load_token()
        if self._announced_in is None:
            yield from self.announce(policy)

    def announce(self, policy: RetryPolicy) -> Procedure[None]:
        """Create the job if it does not exist, and declare the query's substreams."""
        yield Locked(self._announce(policy))

    def announce_again(self, policy: RetryPolicy, missing: JobMissing) -> Procedure[None]:
        """Create the job that the coordinator has lost.

        Raises:
            JobMissing: If an operator deleted the job, or the program has no configuration for it.
        """
        if self._settings.connection.config is None or isinstance(missing, JobDeleted):
            raise missing
        self._log.warning("the coordinator has lost the job; creating it again")
        yield from self.announce(policy)

    def _announce(self, policy: RetryPolicy) -> Procedure[None]:
        status = yield from self._calls.ensure_job(self._settings.connection.config, policy)
        self._keep_config(status)
        yield from self.follow(status, policy, is_before_token=True)
        yield from self._warn_of_rename(policy)

    def _warn_of_rename(self, policy: RetryPolicy) -> Procedure[None]:
        """Warn if the query was renamed, and its earlier name still holds the watermark."""
        progress = yield from self.progress()
        earlier, query = progress.renamed_from, self._settings.query
        if earlier is None:
            return
        query_id = (yield from self._calls.caller())["query_id"]
        # A query of the earlier name on another checkpoint is another query.
        if not any(
            (known["query"], known["query_id"], known["retired"]) == (earlier, query_id, False)
            for known in (yield from self._calls.queries(policy))
        ):
            progress.renamed_from = None  # the next save stores it
            return
        self._log.warning(
            "this checkpoint was used under the name %r before, and the substreams of that name hold the watermark. "
            "Hand them over: job.hand_over(%r, %r, reason=...).",
            earlier,
            earlier,
            query,
        )

    def _keep_config(self, status: Answer) -> None:
        self._config, self._config_version = status["config"], (status["state_epoch"], status["revision"])

    @property
    def is_announced(self) -> bool:
        """Whether this process has announced the query."""
        return self._announced_in is not None

    def is_announced_in(self, answer: Answer) -> bool:
        """Return whether the query was announced in the state epoch of this answer."""
        return bool(answer["state_epoch"] == self._announced_in)

    def follow(self, answer: Answer, policy: RetryPolicy, is_before_token: bool = False) -> Procedure[None]:
        """Declare the query's substreams, unless they were declared in the state epoch of this answer.

        The method declares the substreams that the program names. If the job was lost, the method also declares all
        other substreams of the query, with their max event times.

        Args:
            answer: The answer.
            policy: The retry policy.
            is_before_token: Whether the call had no watermark token.
        """
        announced = self.is_announced_in(answer)
        if not announced:
            self._forget_progress_of_others()
        progress = yield from self.progress()
        if not announced:
            max_event_times = progress.missing_in(answer)
            reason = STARTED
            if max_event_times:
                self._log.warning("the coordinator has lost the job; declaring its substreams again")
                reason = "the job was lost; its substreams are restored with their max event times"
            names = list(dict.fromkeys([*self._declared(), *max_event_times]))
            yield from self._calls.declare(self._settings.query, names, reason, max_event_times, policy)
            self._declared_partitions = self.partitions
            self._announced_in = answer["state_epoch"]
        has_changed = progress.follow(answer, is_before_token)
        if (has_changed or progress.job is None) and self._owns_files and (yield HasCheckpoint()):
            # Store the job before the first pinned watermark: no watermark of a job may be used in another.
            progress.job = self._calls.job
            yield from progress.save()

    def _declared(self) -> list[str]:
        """Return the substreams that hold the watermark before their first row.

        Partitions of the source do so if they can be idle. Without an idle timeout, a partition that never gets a row
        would hold the watermark for ever.
        """
        partitions = self.partitions if self.config.get(IDLE_TIMEOUT) is not None else frozenset[str]()
        return [*self._settings.declared, *sorted(partitions.difference(self._settings.declared))]

    def declare_partitions(self, policy: RetryPolicy) -> Procedure[None]:
        """Declare the partitions of the source that this run has not declared."""
        if self.partitions:  # partitions that are gone may return
            self._declared_partitions &= self.partitions
        new = self.partitions.difference(self._declared_partitions, self._settings.declared)
        if new and self.config.get(IDLE_TIMEOUT) is not None:
            yield from self._calls.declare(self._settings.query, sorted(new), NEW_PARTITIONS, policy=policy)
            self._declared_partitions = self.partitions

    def _forget_progress_of_others(self) -> None:
        if not self._owns_files:
            self._progress = None

    # -- batches --------------------------------------------------------------------------------------------------

    def began(self, answer: Answer, batch_id: int, policy: RetryPolicy) -> Procedure[None]:
        """Process the answer to a begin. If the coordinator has lost a commit, report the max event times again."""
        yield from self.follow(answer, policy)
        progress = yield from self.progress()
        lost = progress.is_lost_by(answer["previous_batch_id"], answer["previous_open"])
        yield from self._declare_again(answer, batch_id, lost, policy)
        if lost:
            self._calls.tell_versions_again()
        if (answer["state_epoch"], answer["revision"]) != self._config_version:
            self._keep_config((yield from self._calls.status(policy)))
        if lost and not progress.restoring:
            self._log.warning(
                "the coordinator has lost the commit of batch %s; reporting the max event times again",
                progress.batch_id,
                extra={"batch": batch_id},
            )
            # Store the flag: the coordinator discards the staged reports of this run when the next run begins.
            progress.restoring = True
            yield from progress.save()
        if progress.restoring:
            yield from self._report_max_event_times(batch_id, policy)

    def _declare_again(self, answer: Answer, batch_id: int, lost: bool, policy: RetryPolicy) -> Procedure[None]:
        """Declare the substreams that the program names again, unless the coordinator has the declaration.

        The client must not declare again without need, because an operator may have evicted a substream.

        Args:
            answer: The answer to the begin.
            batch_id: The batch that began.
            lost: Whether the coordinator has lost a commit.
            policy: The retry policy.
        """
        has_declaration = self.begun.prove_declaration(batch_id, answer["previous_batch_id"], answer["previous_open"])
        if has_declaration and not lost:
            return
        yield from self._calls.declare(self._settings.query, self._declared(), STARTED, policy=policy)

    def report_with_next_batch(
        self, max_event_times: Mapping[str, int], restored_before: int | None = None
    ) -> Procedure[None]:
        """Add max event times to the progress, and report them with the next batch. Run this procedure locked.

        ``restored_before`` is as in :class:`Progress`.
        """
        progress = yield from self.progress()
        progress.restored_before = restored_before or progress.restored_before
        progress.restore_with(max_event_times)
        yield from progress.save()

    def committed(
        self, answer: Answer, batch_id: int, max_event_times: Mapping[str, int], offsets: BatchOffsets | None
    ) -> Procedure[None]:
        """Record and store an acknowledged commit; run this procedure locked."""
        progress = yield from self.progress()
        yield from self.keep_continuing(offsets)
        progress.commit(batch_id, max_event_times, answer["watermark_token"], answer["applied"])
        yield from progress.save()

    def keep_continuing(self, offsets: BatchOffsets | None) -> Procedure[None]:
        """Forget the max event times of substreams that do not continue in a batch; run this procedure locked.

        A job that the coordinator loses is then restored without them.
        """
        continuing = None if offsets is None else offsets.continuing()
        if continuing is not None:
            progress = yield from self.progress()
            progress.keep_only(continuing)

    def restore(self, batch_id: int | None, policy: RetryPolicy) -> Procedure[None]:
        """Send the last acknowledged batch again with the max event times, in case the coordinator has lost it.

        If the coordinator has the batch, nothing changes. Batches in the backlog and jobs that were reset are not
        restored.
        """
        self._forget_progress_of_others()
        stored = None if batch_id is None else (yield from self._settings.pinned_watermarks.read(batch_id))
        progress = yield from self.progress()
        if batch_id is None or stored is None or batch_id != progress.batch_id:
            return
        self._calls.tell_versions_again()
        begun = yield from self._calls.begin(batch_id, stored, None, policy)
        # The token of the begin may have raised the incarnation of a job that the client has just created again.
        yield from self.follow(begun, policy)
        yield from self._declare_again(begun, batch_id, False, policy)
        yield from self._report_max_event_times(batch_id, policy)
        yield from self._calls.commit(batch_id, None, None, policy)

    def _report_max_event_times(self, batch_id: int, policy: RetryPolicy) -> Procedure[None]:
        progress = yield from self.progress()
        reports = reports_of_max_event_times(progress.max_event_times)
        yield from self._calls.report(batch_id, reports, policy)

    def forget_substreams(self, reason: str) -> Procedure[None]:
        """Mark all substreams of the query, except those that are done, as idle until they report again.

        Run this procedure locked.

        Raises:
            CoordinatorUnavailable: If the coordinator does not answer; the progress keeps the substreams.
        """
        try:
            rows = yield from self._calls.substreams()
        except JobMissing:
            rows = []  # the next begin creates the job, without these substreams
        names = [row["substream"] for row in rows if row["query"] == self._settings.query and row["state"] != "done"]
        if names:
            yield from self._calls.idle(self._settings.query, names, reason)
        progress = yield from self.progress()
        progress.max_event_times.clear()
        yield from progress.save()
