"""One run of a query in its talk with the coordinator, whatever that loses on the way.

Invariants:

1. A batch's pin is beside the checkpoint before anybody is given it.
2. When a commit returns, the coordinator has all that the batch reported, and the account of its rows; or, where the
   query goes on without it, the backlog has.
3. Nothing is begun before the backlog is told, and that is told in the order of the batches.

A coordinator may have lost everything (its Redis was emptied) between any two calls. Then the job is created again from
the user's rules, its substreams declared with their tops, the batch begun with its pin, and all of its reports sent
anew: they are kept until the commit is through. It may also have lost the end of what it knew: then it hears the tops
again. Both come out in whatever it answers next, a heartbeat included.
"""

import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from tidegate_spark.backlog import Backlog, Untold
from tidegate_spark.batch import Batch
from tidegate_spark.checkpoint import Checkpoint
from tidegate_spark.errors import CoordinatorUnavailable, JobDeleted, JobMissing, Refused
from tidegate_spark.fold import Fold
from tidegate_spark.logs import QueryLog
from tidegate_spark.outage import ONE_ATTEMPT, Patience
from tidegate_spark.pins import KeptPin, Pins
from tidegate_spark.reached import Reached
from tidegate_spark.reporter import reports_of_tops
from tidegate_spark.teller import Moment, Teller

if TYPE_CHECKING:
    from tidegate_spark.gate import Gate

RETELLINGS = 3
"""How often a batch is told anew to a coordinator that goes on losing it, before its query fails."""

Said = TypeVar("Said")


@dataclass(slots=True)
class Opened:
    """A batch that was begun. ``heard``: the coordinator knows of it, and is to hear the rest."""

    batch: Batch
    kept: KeptPin
    heard: bool
    began: Moment
    input_age_ms: int | None

    @property
    def batch_id(self) -> int:
        return int(self.batch)


class Delivery:
    """See above. It can be pickled before its first batch (Spark Connect runs the hook in another process).

    It is spoken to by the query, by the thread that tells of its silence, and by the one that tells what was untold.
    """

    def __init__(
        self, gate: "Gate", query: str, declared: tuple[str, ...], checkpoint: Checkpoint, pins: Pins, limited: bool
    ) -> None:
        self.query, self.checkpoint = query, checkpoint
        self.coordinator = gate.coordinator.for_a_run()
        self.log = QueryLog(self.coordinator.job, query)
        # Its rules may be changed while the query runs.
        self._gate, self._on_outage = gate, gate.on_outage
        self._declared, self._pins, self._limited = declared, pins, limited
        self._run_id = str(uuid.uuid4())
        self._teller = Teller(Backlog(checkpoint), self.coordinator, self._tell, self._on_outage.goes_on, self.log)
        self._announced = False
        self._watermark: int | None = None
        self._start()

    def _start(self) -> None:
        self._known: Reached | None = None
        self._told_again: tuple[str | None, int] | None = None
        self._first = True
        self._lock = threading.RLock()

    def __getstate__(self) -> dict[str, Any]:
        own = ("_known", "_told_again", "_first", "_lock")
        return {name: value for name, value in self.__dict__.items() if name not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()

    def run(self, query_id: str | None = None) -> dict[str, str]:
        """Who speaks, in the coordinator's terms. ``query_id`` need not be given where the checkpoint can be read."""
        return {"query_id": query_id or self.checkpoint.query_id, "run_id": self._run_id}

    @property
    def _reached(self) -> Reached:
        if self._known is None:
            self._known = Reached.load(self.checkpoint)
        return self._known

    # -- a query --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Announces the query, and tells what an earlier run has left untold.

        One that may go on without its coordinator does so later, where need be.

        :raises CoordinatorUnavailable, Refused: see :meth:`begin`.
        """
        goes_on = self._on_outage.goes_on
        patience = self._on_outage.before_going_on if goes_on else self._on_outage.patience
        try:
            self._announce(patience)
            self._teller.tell(patience)
        except CoordinatorUnavailable as error:
            if not goes_on:
                raise
            self.log.warning("starts without the coordinator: %s", error)

    def started(self) -> None:
        """The query runs: what could not be told before is told beside it."""
        self._teller.go_on()

    def close(self) -> None:
        """The query has ended. What is still untold is told by its next start."""
        self._teller.close()

    def _announce(self, patience: Patience) -> None:
        """The job is there after this, and knows the substreams that are to hold it."""
        with self._lock:
            self._make_acquainted(self.coordinator.ensure_job(self._gate.rules, patience), patience)

    def _make_acquainted(self, answer: Mapping[str, Any], patience: Patience) -> None:
        """The job that answers knows the query's substreams after this: those that are declared; and, where the one
        that knew them was lost, all of them, with how far they had come.
        """
        reached = self._reached
        same = reached.in_job(answer)
        if same and self._announced:
            reached.stay_in(answer)
            return
        tops: dict[str, int] = {}
        if not same:
            reached.settle_in(answer)
            tops = reached.tops
        if tops:
            self.log.warning("the coordinator had lost the job; telling it again what it knew")
        names = list(dict.fromkeys([*self._declared, *tops]))
        try:
            self.coordinator.declare(self.query, names, tops, patience)
        except BaseException:
            reached.state_epoch = None  # it is still to be told
            raise
        self._announced = True

    # -- a batch --------------------------------------------------------------------------------------------------

    def begin(self, batch_id: int) -> Opened:
        """Begins and pins a batch, waiting for the coordinator or going on with the pin before, as was chosen.

        :raises CoordinatorUnavailable: after all the patience there is.
        :raises Refused: when it says no; nothing was begun.
        """
        kept = self._pins.read(batch_id)
        last = kept or (self._pins.read(batch_id - 1) if batch_id else None)
        if self.coordinator.watermark_token is None and last is not None:
            self.coordinator.watermark_token = last.watermark_token
        input_age_ms = self._input_age_ms(batch_id)
        if not self._on_outage.goes_on or last is None:
            self._teller.tell_before(batch_id, self._on_outage.patience)
            return self._begin(batch_id, kept, input_age_ms, self._on_outage.patience)
        try:
            if self._teller.tell_before(batch_id, self._on_outage.before_going_on):
                return self._begin(batch_id, kept, input_age_ms, self._on_outage.before_going_on)
        except CoordinatorUnavailable as error:
            self._go_on_without(batch_id, error)
        if kept is None:
            kept = KeptPin(last.pin, self.coordinator.watermark_token, last.latest_event_time, assumed=True)
            self._pins.write(batch_id, kept)
        batch = self._batch(batch_id, kept, replayed=last is kept)
        return Opened(batch, kept, False, self._teller.now(), input_age_ms)

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
            began = opened.began
            self._teller.put_off(Untold(opened.batch_id, began.at_s, opened.input_age_ms, fold), began)
        return answer

    def _input_age_ms(self, batch_id: int) -> int | None:
        """How long ago the input of a batch that begins was settled, by the clocks of drivers; None: not known.

        It is a moment for all but the first batch of a run, which may be one that an earlier run has planned.
        """
        first, self._first = self._first, False
        if self._limited:
            return None
        if not first:
            return 0
        planned_ms = self.checkpoint.planned_ms(batch_id)
        return None if planned_ms is None else max(0, int(1000 * time.time()) - planned_ms)

    # -- silence --------------------------------------------------------------------------------------------------

    def heartbeat(self, run: Mapping[str, str], age_s: float, after_batch: int | None) -> None:
        """Tells that the query was seen to be caught up ``age_s`` ago, after it had finished ``after_batch``.

        Where it turns out that the coordinator has lost something, it is told that again.

        :raises TidegateError: when that does not come through; the next heartbeat brings the same news.
        """
        try:
            answer = self.coordinator.heartbeat(self.query, run, age_s, after_batch)
        except JobMissing as missing:
            self._check_lost(missing)
            self._known = None
            self._announce(ONE_ATTEMPT)
            self._tell_again(run, after_batch)
            return
        with self._lock:
            if not self._reached.in_job(answer):
                self._known = None  # another process may have brought it further
                self._make_acquainted(answer, ONE_ATTEMPT)
        if not answer["applied"]:
            self._tell_again(run, after_batch)

    def _tell_again(self, run: Mapping[str, str], batch_id: int | None) -> None:
        """Tells again how far the query had come with its last batch, which the coordinator no longer knows.

        If it does after all (it has had the next one begun, or a batch is untold), this changes nothing there.
        """
        with self._lock:
            reached = self._known = Reached.load(self.checkpoint)
            kept = None if batch_id is None else self._pins.read(batch_id)
            if batch_id is None or kept is None or batch_id != reached.batch_id:
                return
            if self._told_again != (said := (reached.state_epoch, batch_id)):
                self.coordinator.begin(
                    self.query, run, batch_id, self._pins.kept, {"pin": kept.pin}, None, ONE_ATTEMPT
                )  # fmt: skip
                self._tell_tops(run, batch_id, ONE_ATTEMPT)
                self.coordinator.commit(self.query, run, batch_id, None, ONE_ATTEMPT)
                self._told_again = said

    # -- how it is said -------------------------------------------------------------------------------------------

    def _begin(self, batch_id: int, kept: KeptPin | None, input_age_ms: int | None, patience: Patience) -> Opened:
        with self._lock:
            if not self._announced:
                self._announce(patience)
            try:
                begun = self._ask_to_begin(batch_id, kept, input_age_ms, patience)
            except JobMissing as missing:
                self._check_lost(missing)
                self.log.warning("the coordinator does not know the job any more; creating it again")
                self._announce(patience)
                begun = self._ask_to_begin(batch_id, kept, input_age_ms, patience)
            self._look_after(begun, batch_id, patience)
        replayed = begun["replayed"] or kept is not None
        if kept is None:
            kept = KeptPin(begun["pin"], begun["watermark_token"], begun["latest_event_time"])
            self._pins.write(batch_id, kept)
        return Opened(self._batch(batch_id, kept, replayed), kept, True, self._teller.now(), input_age_ms)

    def _ask_to_begin(
        self, batch_id: int, kept: KeptPin | None, input_age_ms: int | None, patience: Patience
    ) -> dict[str, Any]:
        def ask(pin: dict[str, int | None]) -> dict[str, Any]:
            run, keep = self.run(), self._pins.kept
            return self.coordinator.begin(self.query, run, batch_id, keep, pin, input_age_ms, patience)

        if kept is None:
            if batch_id == 0:
                self._warn_of_another_checkpoint(patience)
            return ask({})
        try:
            return ask({"pin": kept.pin})
        except Refused as refusal:
            if refusal.code != "pin_conflict" or not kept.assumed:
                raise
            # It was begun after all, before the coordinator went away; but its rows are judged by the pin before.
            self.log.warning("was begun with another pin than the assumed one", extra={"batch": batch_id})
            return ask({})

    def _check_lost(self, missing: JobMissing) -> None:
        """Raises it again unless the job was lost, and can be made anew: one that was deleted is to stay so."""
        if self._gate.rules is None or isinstance(missing, JobDeleted):
            raise missing

    def _batch(self, batch_id: int, kept: KeptPin, replayed: bool) -> Batch:
        return Batch(
            batch_id, pin=kept.pin, watermark=self._watermark, job=self.coordinator.job, query=self.query,
            replayed=replayed,
        )  # fmt: skip

    def _say(self, call: Callable[[Opened, Fold, Patience], Said], opened: Opened, fold: Fold) -> Said | None:
        """A call about an open batch. None where the query goes on without its coordinator."""
        if not opened.heard:
            return None
        if not self._on_outage.goes_on:
            return self._insist(call, opened, fold, self._on_outage.patience)
        try:
            return self._insist(call, opened, fold, self._on_outage.before_going_on)
        except CoordinatorUnavailable as error:
            self._go_on_without(opened.batch_id, error)
            opened.heard = False
            return None

    def _go_on_without(self, batch_id: int, error: CoordinatorUnavailable) -> None:
        self.log.warning("going on without the coordinator: %s", error, extra={"batch": batch_id})

    def _insist(
        self, call: Callable[[Opened, Fold, Patience], Said], opened: Opened, fold: Fold, patience: Patience
    ) -> Said:
        """A call about an open batch; a batch that the coordinator has lost is told anew, and the call repeated."""
        for _ in range(RETELLINGS):
            try:
                return call(opened, fold, patience)
            except JobMissing as missing:
                self._check_lost(missing)
            except Refused as refusal:
                if refusal.code != "batch_not_begun":
                    raise
            self.log.warning("the coordinator has lost this batch; telling it anew", extra={"batch": opened.batch_id})
            input_age_ms = opened.input_age_ms
            if input_age_ms is not None:
                input_age_ms += max(0, int(1000 * (time.time() - opened.began.at_s)))
            self._begin(opened.batch_id, opened.kept, input_age_ms, patience)
            self._report(opened, fold, patience)
        return call(opened, fold, patience)

    def _report(self, opened: Opened, fold: Fold, patience: Patience) -> bool:
        self.coordinator.report(self.query, self.run(), opened.batch_id, fold.reports(), patience)
        return True

    def _tell_tops(self, run: Mapping[str, str], batch_id: int, patience: Patience) -> None:
        """Stages, with an open batch, how far all substreams had come before it."""
        self.coordinator.report(self.query, run, batch_id, reports_of_tops(self._reached.tops), patience)

    def _commit(self, opened: Opened, fold: Fold, patience: Patience) -> dict[str, Any]:
        answer = self.coordinator.commit(self.query, self.run(), opened.batch_id, fold.account(), patience)
        self._watermark = answer["watermark"]
        with self._lock:
            self._reached.batch_id = opened.batch_id
            self._reached.see(fold.tops())
            self._reached.save(self.checkpoint)
        return answer

    def _tell(self, untold: Untold, patience: Patience) -> None:
        """Tells the coordinator of a batch that was worked off without it."""
        kept = self._pins.read(untold.batch_id)
        assert kept is not None, "a batch is worked off with its pin beside the checkpoint"
        opened = self._begin(untold.batch_id, kept, untold.input_age_ms, patience)
        self._insist(self._report, opened, untold.fold, patience)
        self._insist(self._commit, opened, untold.fold, patience)

    # -- what else a begin brings up ------------------------------------------------------------------------------

    def _warn_of_another_checkpoint(self, patience: Patience) -> None:
        """A query that starts over reads rows that the job has long counted as complete: they will be late."""
        for known in self.coordinator.queries(patience):
            if known["query"] == self.query and known["query_id"] != self.run()["query_id"]:
                self.log.warning(
                    "has run on another checkpoint before (%s). The job's watermark stays where that one brought it, "
                    "so what is read again from below it is late; to begin anew, use another job.",
                    known["query_id"],
                )

    def _look_after(self, begun: Mapping[str, Any], batch_id: int, patience: Patience) -> None:
        """What a begin tells beside the pin: a query that nobody expected; a job that was lost, or has lost its end."""
        self._watermark = begun["watermark"]
        if begun["joined"]:
            self.log.warning(
                "joins the job at the watermark %s: what it has from below that is late. Rules with expected_queries "
                "would have made the job wait for it.",
                begun["coalesced"],
            )
        same = self._reached.in_job(begun)
        self._make_acquainted(begun, patience)
        if same and self._reached.lost_by(begun["previous_batch_id"], begun["previous_open"], batch_id):
            self.log.warning(
                "the coordinator no longer knew of the commit of batch %s; telling it again how far the query had come",
                self._reached.batch_id, extra={"batch": batch_id},
            )  # fmt: skip
            self._tell_tops(self.run(), batch_id, patience)
