"""What the coordinator's job knows of a query: kept up, and told again where it was lost.

A coordinator may have lost everything (its Redis was emptied): then the job is created again from the user's rules, and
the query's substreams are declared with their tops. It may have lost the end of what it knew: then it hears the tops
again with the next batch. Which of the two it is comes out in whatever it answers next. A job that somebody began anew
is left alone: it is not to know what was before.
"""

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tidegate_spark.checkpoint import Checkpoint
from tidegate_spark.config import JobConfig
from tidegate_spark.coordinator import Coordinator, Run
from tidegate_spark.errors import JobDeleted, JobMissing
from tidegate_spark.logs import QueryLog
from tidegate_spark.outage import Patience
from tidegate_spark.pinned_watermarks import PinnedWatermarks
from tidegate_spark.reached import Reached
from tidegate_spark.reporter import reports_of_tops

if TYPE_CHECKING:
    from tidegate_spark.job import Job


class QueryRegistration:
    """One query's. Its lock is held around all that changes it, calls included, by whichever thread makes them.

    It can be pickled. In a process where nothing is written ``here``, another one's hook keeps the documents.
    """

    def __init__(
        self,
        job: "Job",
        coordinator: Coordinator,
        query: str,
        declared: tuple[str, ...],
        checkpoint: Checkpoint,
        pinned_watermarks: PinnedWatermarks,
        log: QueryLog,
        here: bool,
    ) -> None:
        # The job, for its rules may be changed while the query runs.
        self._job, self._coordinator, self._query, self._declared = job, coordinator, query, declared
        self._checkpoint, self._pins, self._log = checkpoint, pinned_watermarks, log
        self._start(here)

    def _start(self, here: bool) -> None:
        self.lock = threading.RLock()
        self._here = here
        self._loaded: Reached | None = None
        self._announced_in: str | None = None
        self._in_force: JobConfig = {}
        """The job's rules, as of the last announcement, or the last batch."""
        self._revision: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        own = ("lock", "_here", "_loaded", "_announced_in", "_in_force", "_revision")
        return {name: value for name, value in self.__dict__.items() if name not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start(here=True)

    @property
    def reached(self) -> Reached:
        """How far the query has come."""
        if self._loaded is None:
            self._loaded = Reached.load(self._query, self._checkpoint)
        return self._loaded

    @property
    def config(self) -> JobConfig:
        """The job's rules in force, as far as they were heard of; else those it is to be created from."""
        return self._in_force or self._job.config or {}

    def max_event_times(self) -> dict[str, int]:
        """The highest event time of each substream, in all batches whose commits the coordinator took."""
        with self.lock:
            return dict(self.reached.max_event_times)

    def bring_proof(self) -> None:
        """Sees to it that the coordinator is sent the last watermark token there is, in case it has forgotten."""
        if self._coordinator.watermark_token is None:
            with self.lock:
                token, newest = self.reached.watermark_token, self._pins.newest()
                if newest is not None and (self.reached.batch_id is None or newest[0] > self.reached.batch_id):
                    token = newest[1].watermark_token
                self._coordinator.watermark_token = token

    def is_announced_in(self, answer: Mapping[str, Any]) -> bool:
        """Whether the job that answers is the one that the query was announced in."""
        return bool(answer["state_epoch"] == self._announced_in)

    def announce(self, patience: Patience, missing: JobMissing | None = None) -> None:
        """The job is there after this, and knows the substreams that are to hold it.

        :param missing: that it was not there. Nothing is created where it was deleted, or where there are no rules.
        """
        if missing is not None and (self._job.config is None or isinstance(missing, JobDeleted)):
            raise missing
        if missing is not None:
            self._log.warning("the coordinator does not know the job any more; creating it again")
        with self.lock:
            status = self._coordinator.ensure_job(self._job.config, patience)
            self._know(status)
            self.meet(status, patience)

    def _know(self, status: Mapping[str, Any]) -> None:
        self._in_force, self._revision = status["config"], status["revision"]

    def forget_substreams(self, reason: str) -> None:
        """Stop waiting for all substreams that the query had; those that report again count again.

        Raises:
            CoordinatorUnavailable: If the coordinator does not answer; nothing is forgotten then.
        """
        with self.lock:
            try:
                rows = self._coordinator.substreams()
            except JobMissing:
                rows = []  # it is created anew, and knows nothing of them
            names = [row["substream"] for row in rows if row["query"] == self._query and row["state"] != "done"]
            if names:
                self._coordinator.idle(self._query, names, reason)
            self.reached.max_event_times.clear()
            self.reached.save(self._checkpoint)

    def announced(self, patience: Patience) -> None:
        """Announces the query unless this process has."""
        self.bring_proof()
        if self._announced_in is None:
            self.announce(patience)

    def meet(self, answer: Mapping[str, Any], patience: Patience) -> None:
        """The job that answers knows the query's substreams after this: those that are declared; and, where the job
        that knew them was lost, all of them, with how far they had come.
        """
        if not self._here and not self.is_announced_in(answer):
            self._loaded = None  # the hook, in its process, has brought it further
        reached = self.reached
        if not self.is_announced_in(answer):
            max_event_times = reached.lacking_in(answer)
            if max_event_times:
                self._log.warning("the coordinator had lost the job; telling it again what it knew")
            names = list(dict.fromkeys([*self._declared, *max_event_times]))
            reason = (
                "the job was lost, or reset: how far the query had come" if max_event_times else "the query has begun"
            )
            self._coordinator.declare(self._query, names, reason, max_event_times, patience)
            self._announced_in = answer["state_epoch"]
        if reached.settle_in(answer) and self._here and self._checkpoint.started():
            reached.save(self._checkpoint)

    def begun(self, answer: Mapping[str, Any], run: Run, batch_id: int, patience: Patience) -> None:
        """A batch was begun; what the coordinator has lost before is staged with it. JobConfig that were changed are
        asked
        for.
        """
        self.meet(answer, patience)
        if answer["revision"] != self._revision:
            self._know(self._coordinator.status(patience))
        reached = self.reached
        if reached.lost_by(answer["previous_batch_id"], answer["previous_open"], batch_id) and not reached.incomplete:
            self._log.warning(
                "the coordinator no longer knew of the commit of batch %s; telling it again how far the query had come",
                reached.batch_id,
                extra={"batch": batch_id},
            )
            # Kept, for a run that is started anew drops what this one is about to stage.
            reached.incomplete = True
            reached.save(self._checkpoint)
        if reached.incomplete:
            self._tell_tops(run, batch_id, patience)

    def committed(self, answer: Mapping[str, Any], batch_id: int, max_event_times: Mapping[str, int]) -> None:
        """The coordinator has taken the commit of a batch, with its highest event times."""
        with self.lock:
            self.reached.commit(batch_id, max_event_times, answer["watermark_token"])
            self.reached.save(self._checkpoint)

    def tell_again(self, run: Run, batch_id: int | None, patience: Patience) -> None:
        """Tells again how far the query had come with its last batch, which the coordinator does not know.

        If it does after all (it has had the next one begun), this changes nothing there. If it never did (the batch is
        untold yet), or is not to (the job began anew), nothing is told.
        """
        if not self._here:
            self._loaded = None
        kept = None if batch_id is None else self._pins.read(batch_id)
        if batch_id is None or kept is None or batch_id != self.reached.batch_id:
            return
        known = {"pinned_watermark": kept.pinned_watermark}
        self._coordinator.begin(self._query, run, batch_id, self._pins.kept, known, None, patience)
        self._tell_tops(run, batch_id, patience)
        self._coordinator.commit(self._query, run, batch_id, None, None, patience)

    def _tell_tops(self, run: Run, batch_id: int, patience: Patience) -> None:
        """Stages, with an open batch, how far all substreams had come before it."""
        self._coordinator.report(self._query, run, batch_id, reports_of_tops(self.reached.max_event_times), patience)
