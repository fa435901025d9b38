"""One run of a query in its talk with the coordinator, whatever that loses on the way.

Invariants:

1. A batch's pin is beside the checkpoint before anybody is given it.
2. When a commit returns, the coordinator has all that the batch reported, and the account of its rows; or, where the
   query goes on without it, the backlog has.
3. Nothing is begun before the backlog is told, and that is told in the order of the batches.

A coordinator may have lost an open batch between any two calls, with all else that it knew, or alone. Then the batch is
begun again with its pin, and all of its reports are sent anew: they are kept until the commit is through.
"""

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from tidegate_spark.backlog import Backlog, Untold
from tidegate_spark.batch import Batch
from tidegate_spark.checkpoint import Checkpoint
from tidegate_spark.choice import Choice
from tidegate_spark.config import JobConfig
from tidegate_spark.coordinator import Moment
from tidegate_spark.errors import CoordinatorUnavailable, JobMissing, Refused
from tidegate_spark.fold import Fold
from tidegate_spark.logs import QueryLog
from tidegate_spark.outage import ONE_ATTEMPT, Patience
from tidegate_spark.pinned_watermarks import PinnedWatermarks, StoredPinnedWatermark
from tidegate_spark.registration import QueryRegistration
from tidegate_spark.teller import Teller

if TYPE_CHECKING:
    from tidegate_spark.job import Job

MAX_FUTURE_SKEW_MS = 24 * 60 * 60 * 1000
"""The coordinator's, for rules that do not say."""

RETELLINGS = 3
"""How often a batch is told anew to a coordinator that goes on losing it, before its query fails."""

LOST = frozenset({"batch_not_begun", "reports_missing"})
"""Answers of a coordinator that has lost an open batch, or part of it."""

Settles = Literal["each batch", "the run", "never"]
"""When it is settled that all which is there is taken in: as each batch is planned; for all batches of the run, as that
starts; or never, for batches are limited in size.
"""


def settled(limited: bool | None, available_now: bool) -> Settles:
    """When a query's input is settled. ``limited``: whether its batches are, as far as its user has said."""
    if limited is None:
        return "the run" if available_now else "each batch"
    return "never" if limited else "each batch"


Said = TypeVar("Said")


@dataclass(slots=True)
class Opened:
    """A batch that was begun. ``heard``: the coordinator knows of it, and is to hear the rest."""

    batch: Batch
    kept: StoredPinnedWatermark
    heard: bool
    began: Moment
    settled: Moment | None

    @property
    def batch_id(self) -> int:
        return int(self.batch)


class Delivery:
    """See above. Spoken to by the query, by the thread that tells of its silence, and by that which tells the backlog.

    It can be pickled before its first batch: Spark Connect runs the hook in another process, and not ``here``.
    """

    def __init__(
        self,
        job: "Job",
        query: str,
        declared: tuple[str, ...],
        checkpoint: Checkpoint,
        pinned_watermarks: PinnedWatermarks,
        settles: Settles,
        here: bool,
        choice: Choice | None = None,
        replaces_substreams: bool = False,
    ) -> None:
        self.query, self.checkpoint = query, checkpoint
        self._choice, self._replaces_substreams = choice, replaces_substreams
        self.coordinator = job.coordinator.for_a_run()
        self.log = QueryLog(self.coordinator.job, query)
        self.on_outage, self._pins, self._settles = job.on_outage, pinned_watermarks, settles
        self._run_id = str(uuid.uuid4())
        self.teller = Teller(Backlog(checkpoint), self.coordinator, self._tell, self.on_outage.goes_on, self.log)
        self.registration = QueryRegistration(
            job, self.coordinator, query, declared, checkpoint, pinned_watermarks, self.log, here
        )
        self._watermark: int | None = None
        self.max_future_skew_ms: int | None = (job.config or {}).get("max_future_skew_ms", MAX_FUTURE_SKEW_MS)
        """How far ahead of the clock an event time may be, as far as is known: of the rules in force, if heard of."""
        self._start(here)

    def _start(self, here: bool) -> None:
        self._here = here
        self._first = True
        self._choice_kept = False
        self._started = self.teller.now()

    def __getstate__(self) -> dict[str, Any]:
        own = ("_here", "_first", "_started", "_choice_kept")
        return {name: value for name, value in self.__dict__.items() if name not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start(here=True)

    def run(self, query_id: str | None = None) -> dict[str, str]:
        """Who speaks, in the coordinator's terms. ``query_id`` need not be given where the checkpoint can be read."""
        return {"query_id": query_id or self.checkpoint.query_id, "run_id": self._run_id}

    # -- a query --------------------------------------------------------------------------------------------------

    def start(self, adopts: bool = True) -> None:
        """Announces the query, and tells what an earlier run has left untold.

        One that may go on without its coordinator does so later, where need be. ``adopts``: also :meth:`adopt_choice`.

        :raises CoordinatorUnavailable, Refused: see :meth:`begin`.
        :raises InvalidUsage: where the run before was started with other columns or windows.
        """
        if self._here and self.checkpoint.started():
            self._check_choice()
        goes_on = self.on_outage.goes_on
        patience = self.on_outage.before_going_on if goes_on else self.on_outage.patience
        try:
            self.registration.announce(patience)
            self.max_future_skew_ms = self.registration.config["max_future_skew_ms"]
            if self.teller.tell(patience) and self._here and adopts and self.checkpoint.started():
                self.adopt_choice()
        except CoordinatorUnavailable as error:
            if not goes_on:
                raise
            self.log.warning("starts without the coordinator (%s)", error.reason)

    def started(self) -> None:
        """The query runs: what could not be told before is told beside it."""
        if self._here:
            self.teller.go_on()

    def close(self) -> None:
        """The query has ended. What is still untold is told by its next start."""
        self.teller.close()

    # -- a batch --------------------------------------------------------------------------------------------------

    def begin(self, batch_id: int) -> Opened:
        """Begins and pins a batch, waiting for the coordinator or going on with the pin before, as was chosen.

        :raises CoordinatorUnavailable: after all the patience there is.
        :raises Refused: when it says no; nothing was begun.
        """
        self._check_choice()
        self.registration.bring_proof()
        kept = self._pins.read(batch_id)
        last = kept or (self._pins.read(batch_id - 1) if batch_id else None)
        settled = self._settled(batch_id)
        if not self.on_outage.goes_on or last is None:
            if self.teller.tell_before(batch_id, self.on_outage.patience):
                self.adopt_choice()
            return self._begin(batch_id, kept, settled, self.on_outage.patience)
        try:
            if self.teller.tell_before(batch_id, self.on_outage.before_going_on):
                self.adopt_choice()
                return self._begin(batch_id, kept, settled, self.on_outage.before_going_on)
        except CoordinatorUnavailable as error:
            self._go_on_without(batch_id, error)
        if kept is None:
            kept = StoredPinnedWatermark(
                last.pinned_watermark, self.coordinator.watermark_token, last.latest_event_time, assumed=True
            )
            self._pins.write(batch_id, kept)
        batch = self._batch(batch_id, kept, replayed=last is kept)
        return Opened(batch, kept, False, self.teller.now(), settled)

    def report(self, opened: Opened, fold: Fold) -> None:
        """Stages what was seen of a batch.

        :raises CoordinatorUnavailable, Refused: see :meth:`begin`.
        """
        self._say(self._report, opened, fold)

    def commit(self, opened: Opened, fold: Fold) -> dict[str, Any] | None:
        """The batch is done; returns the coordinator's answer, None where it is told later.

        :raises CoordinatorUnavailable, Refused: see :meth:`begin`.
        """
        answer = self._say(self._commit, opened, fold)
        if answer is None:
            began, settled_s = opened.began, None if opened.settled is None else opened.settled.at_s
            self.teller.put_off(Untold(opened.batch_id, opened.kept, began.at_s, settled_s, fold), began)
        return answer

    def finished(self, batch_id: int, pinned_watermark: int | None, planned_ms: int, fold: Fold) -> None:
        """Keeps what is to be told of a batch that was not begun here, for Spark has judged and finished it.

        ``planned_ms``: when Spark settled what is in it (epoch milliseconds).
        """
        now, kept = self.teller.now(), StoredPinnedWatermark(pinned_watermark, self.coordinator.watermark_token)
        settled = self._settled_by(planned_ms, now)
        self._pins.write(batch_id, kept)
        self.teller.keep(Untold(batch_id, kept, now.at_s, None if settled is None else settled.at_s, fold), now)

    def tell_finished(self) -> bool:
        """Report what is kept: now, or, if the coordinator is away, while batches go on.

        Returns:
            Whether the coordinator has taken all of it.

        Raises:
            Refused: If it refuses; what it has not taken is kept.
        """
        try:
            return self.teller.tell(self.on_outage.before_going_on)
        except CoordinatorUnavailable as error:
            self.log.warning("going on without the coordinator (%s)", error.reason)
            self.teller.go_on()
            return False

    @property
    def config(self) -> JobConfig:
        """The job's rules in force, as far as they were heard of; else those it is to be created from."""
        return self.registration.config

    def max_event_times(self) -> dict[str, int]:
        """The highest event time of each substream, in all batches whose commits the coordinator took."""
        return self.registration.max_event_times()

    @property
    def told_up_to(self) -> int | None:
        """The last batch that the coordinator took the commit of; None: none."""
        return self.registration.reached.batch_id

    def untold(self, batch_id: int, pinned_watermark: int | None) -> Batch:
        """A batch that the coordinator need not know of."""
        return self._batch(batch_id, StoredPinnedWatermark(pinned_watermark, None), replayed=False)

    def _settled(self, batch_id: int) -> Moment | None:
        """The moment up to which all input is in a batch that begins now, or in one before; None: not known.

        The first batch of a run may be one that an earlier run has planned.
        """
        first, self._first = self._first, False
        if self._settles == "never":
            return None
        now = self.teller.now()
        planned_ms = self.checkpoint.planned_ms(batch_id) if first else int(1000 * now.at_s)
        return None if planned_ms is None else self._settled_by(planned_ms, now)

    def _settled_by(self, planned_ms: int, now: Moment) -> Moment | None:
        """The same of one that was planned at a moment (epoch milliseconds)."""
        if self._settles == "never":
            return None
        if self._settles == "each batch":
            return Moment(min(planned_ms / 1000, now.at_s), now.waited_s)
        return self._started if planned_ms / 1000 >= self._started.at_s else None

    def _check_choice(self) -> None:
        """Check the choices of the query against those of the run before.

        Raises:
            InvalidUsage: If the query cannot go on with them.
        """
        if self._choice is not None and not self._choice_kept:
            before = Choice.load(self.checkpoint)
            if before is not None:
                self._choice.check(before, self._replaces_substreams)

    def adopt_choice(self) -> None:
        """Keep the choices of the query, once in this process, and stop waiting for substreams that they replace.

        Call it when everything that earlier runs left is reported: a report makes a substream count again.
        """
        if self._choice is None or self._choice_kept:
            return
        before = Choice.load(self.checkpoint)
        if before is not None and self._choice.replaces(before):
            self.registration.forget_substreams("replaced: the query was started with other columns")
        if before != self._choice:
            self._choice.save(self.checkpoint)
        self._choice_kept = True

    # -- silence --------------------------------------------------------------------------------------------------

    def heartbeat(self, run: Mapping[str, str], age_s: float, after_batch: int | None) -> None:
        """Tells that the query was seen to be caught up ``age_s`` ago, after it had finished ``after_batch``.

        Where it turns out that the coordinator has lost something, it is told that again.

        :raises TidegateError: when that does not come through; the next heartbeat brings the same news.
        """
        self.registration.bring_proof()
        try:
            answer = self.coordinator.heartbeat(self.query, run, age_s, after_batch)
        except JobMissing as missing:
            with self.registration.lock:
                self.registration.announce(ONE_ATTEMPT, missing)
                self.registration.tell_again(run, after_batch, ONE_ATTEMPT)
            return
        if answer["applied"] and self.registration.is_announced_in(answer):
            return
        with self.registration.lock:
            self.registration.meet(answer, ONE_ATTEMPT)
            if not answer["applied"]:
                self.registration.tell_again(run, after_batch, ONE_ATTEMPT)

    # -- how it is said -------------------------------------------------------------------------------------------

    def _begin(
        self, batch_id: int, kept: StoredPinnedWatermark | None, settled: Moment | None, patience: Patience
    ) -> Opened:
        with self.registration.lock:
            self.registration.announced(patience)
            try:
                begun = self._ask_to_begin(batch_id, kept, settled, patience)
            except JobMissing as missing:
                self.registration.announce(patience, missing)
                begun = self._ask_to_begin(batch_id, kept, settled, patience)
            self.registration.begun(begun, self.run(), batch_id, patience)
        self._watermark = begun["watermark"]
        latest = begun["latest_event_time"]
        self.max_future_skew_ms = None if latest is None else latest - begun["now_ms"]
        if begun["joined"]:
            self.log.warning(
                "joins the job at the watermark %s: what it has from below that is late. JobConfig with "
                "expected_queries "
                "would have made the job wait for it.",
                begun["coalesced_watermark"],
            )
        replayed = begun["replayed"] or kept is not None
        if kept is None:
            kept = StoredPinnedWatermark(
                begun["pinned_watermark"], begun["watermark_token"], begun["latest_event_time"]
            )
            self._pins.write(batch_id, kept)
        return Opened(self._batch(batch_id, kept, replayed), kept, True, self.teller.now(), settled)

    def _ask_to_begin(
        self, batch_id: int, kept: StoredPinnedWatermark | None, settled: Moment | None, patience: Patience
    ) -> dict[str, Any]:
        def ask(pinned_watermark: dict[str, int | None]) -> dict[str, Any]:
            run, keep = self.run(), self._pins.kept
            return self.coordinator.begin(self.query, run, batch_id, keep, pinned_watermark, settled, patience)

        if kept is None:
            if batch_id == 0:
                self._warn_of_another_checkpoint(patience)
            return ask({})
        try:
            return ask({"pinned_watermark": kept.pinned_watermark})
        except Refused as refusal:
            if refusal.code != "pinned_watermark_conflict" or not kept.assumed:
                raise
            # It was begun after all, before the coordinator went away; but its rows are judged by the pin before.
            self.log.warning("was begun with another pin than the assumed one", extra={"batch": batch_id})
            return ask({})

    def _batch(self, batch_id: int, kept: StoredPinnedWatermark, replayed: bool) -> Batch:
        return Batch(
            batch_id,
            watermark=kept.pinned_watermark,
            job_watermark=self._watermark,
            job=self.coordinator.job,
            query=self.query,
            replayed=replayed,
        )

    def _say(self, call: Callable[[Opened, Fold, Patience], Said], opened: Opened, fold: Fold) -> Said | None:
        """A call about an open batch. None where the query goes on without its coordinator."""
        if not opened.heard:
            return None
        if not self.on_outage.goes_on:
            return self._insist(call, opened, fold, self.on_outage.patience)
        try:
            return self._insist(call, opened, fold, self.on_outage.before_going_on)
        except CoordinatorUnavailable as error:
            self._go_on_without(opened.batch_id, error)
            opened.heard = False
            return None

    def _go_on_without(self, batch_id: int, error: CoordinatorUnavailable) -> None:
        self.log.warning("going on without the coordinator (%s)", error.reason, extra={"batch": batch_id})

    def _insist(
        self, call: Callable[[Opened, Fold, Patience], Said], opened: Opened, fold: Fold, patience: Patience
    ) -> Said:
        """A call about an open batch; a batch that the coordinator has lost is told anew, and the call repeated."""
        for _ in range(RETELLINGS):
            try:
                return call(opened, fold, patience)
            except JobMissing as missing:
                self.registration.announce(patience, missing)
            except Refused as refusal:
                if refusal.code not in LOST:
                    raise
            self.log.warning("the coordinator has lost this batch; telling it anew", extra={"batch": opened.batch_id})
            self._begin(opened.batch_id, opened.kept, opened.settled, patience)
            self._report(opened, fold, patience)
        return call(opened, fold, patience)

    def _report(self, opened: Opened, fold: Fold, patience: Patience) -> bool:
        self.coordinator.report(self.query, self.run(), opened.batch_id, fold.reports(), patience)
        return True

    def _commit(self, opened: Opened, fold: Fold, patience: Patience) -> dict[str, Any]:
        answer = self.coordinator.commit(
            self.query, self.run(), opened.batch_id, fold.account(), fold.reported(), patience
        )
        self._watermark = answer["watermark"]
        self.registration.committed(answer, opened.batch_id, fold.max_event_times())
        return answer

    def _tell(self, untold: Untold, since: Moment, patience: Patience) -> None:
        """Tells the coordinator of a batch that was worked off without it, while it heard nothing of the query."""
        settled = None if untold.settled_s is None else Moment(untold.settled_s, since.waited_s)
        opened = self._begin(untold.batch_id, untold.kept, settled, patience)
        self._insist(self._report, opened, untold.fold, patience)
        self._insist(self._commit, opened, untold.fold, patience)

    def _warn_of_another_checkpoint(self, patience: Patience) -> None:
        """A query that starts over reads rows that the job has long counted as complete: they will be late."""
        for known in self.coordinator.queries(patience):
            if known["query"] == self.query and known["query_id"] != self.run()["query_id"]:
                self.log.warning(
                    "has run on another checkpoint before (%s). The job's watermark stays where that one brought it, "
                    "so what is read again from below it is late; to begin anew, use another job.",
                    known["query_id"],
                )
