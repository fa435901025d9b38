"""One run of a query in its talk with the coordinator, whatever that loses on the way.

Invariants:

1. A batch's pin is beside the checkpoint before anybody is given it.
2. When a commit returns, the coordinator has all that the batch reported, and the account of its rows; or, where the
   query goes on without it, the backlog has.
3. Nothing is begun before the backlog is told, and that is told in the order of the batches.

A coordinator may have lost everything (its Redis was emptied, its job deleted) between any two calls. Then the job is
created again from the user's rules, its substreams declared with the last tops, the batch begun with its pin, and all
of its reports sent anew: they are kept until the commit is through.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tidegate_spark.backlog import Backlog, Untold
from tidegate_spark.batch import Batch
from tidegate_spark.checkpoint import Checkpoint
from tidegate_spark.coordinator import Coordinator
from tidegate_spark.errors import CoordinatorUnavailable, JobDeleted, JobMissing, Refused
from tidegate_spark.fold import Fold
from tidegate_spark.logs import QueryLog
from tidegate_spark.outage import OnOutage, Patience
from tidegate_spark.pins import KeptPin, Pins
from tidegate_spark.rules import Rules
from tidegate_spark.teller import Teller

RETELLINGS = 3
"""How often a batch is told anew to a coordinator that goes on losing it, before its query fails."""

Said = TypeVar("Said")


@dataclass(slots=True)
class Opened:
    """A batch that was begun. ``heard``: the coordinator knows of it, and is to hear the rest."""

    batch: Batch
    kept: KeptPin
    heard: bool
    began_s: float = field(default_factory=time.time)

    @property
    def batch_id(self) -> int:
        return int(self.batch)


class Delivery:
    """See above. It can be pickled before its first batch (Spark Connect runs the hook in another process)."""

    def __init__(
        self, coordinator: Coordinator, rules: Rules | None, declared: tuple[str, ...], query: str, run_id: str,
        checkpoint: Checkpoint, pins: Pins, on_outage: OnOutage,
    ) -> None:  # fmt: skip
        self.coordinator, self.query, self._rules, self._declared = coordinator, query, rules, declared
        self._run_id, self._checkpoint, self._on_outage = run_id, checkpoint, on_outage
        self._pins = pins
        self.log = QueryLog(coordinator.job, query)
        self._teller = Teller(Backlog(checkpoint), self._tell, on_outage.goes_on, self.log)
        self._tops: dict[str, int] = {}
        self._announced = False
        self._state_epoch: str | None = None
        self._watermark: int | None = None
        self._waited_s: float | None = None

    def run(self, query_id: str | None = None) -> dict[str, str]:
        """Who speaks, in the coordinator's terms. ``query_id`` need not be given where the checkpoint can be read."""
        return {"query_id": query_id or self._checkpoint.query_id, "run_id": self._run_id}

    def start(self) -> None:
        """Announces the query; one that may go on without its coordinator does so later, where need be.

        :raises CoordinatorUnavailable, Refused: see :meth:`begin`.
        """
        self._teller.look()
        if not self._on_outage.goes_on or not self._pins.any():
            self._announce(self._on_outage.patience)
            return
        try:
            self._announce(self._on_outage.before_going_on)
        except CoordinatorUnavailable as error:
            self.log.warning("starts without the coordinator: %s", error)

    def _announce(self, patience: Patience) -> None:
        """The job is there after this, and knows the substreams that are to hold it from the start.

        Those that this run has seen already are among them, with how far they had come, in case the job was lost.
        """
        self.coordinator.ensure_job(self._rules, patience)
        names = list(dict.fromkeys([*self._declared, *self._tops]))
        if names:
            self.coordinator.declare(self.query, names, self._tops, patience)
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
        if not self._on_outage.goes_on or last is None:
            self._teller.tell_before(batch_id, self._on_outage.patience)
            return self._begin(batch_id, kept, self._on_outage.patience)
        try:
            if self._teller.tell_before(batch_id, self._on_outage.before_going_on):
                self._waited_s = None
                return self._begin(batch_id, kept, self._on_outage.before_going_on)
        except CoordinatorUnavailable as error:
            self.log.warning("going on without the coordinator: %s", error, extra={"batch": batch_id})
        if kept is None:
            kept = KeptPin(last.pin, self.coordinator.watermark_token, assumed=True)
            self._pins.write(batch_id, kept)
        return Opened(self._batch(batch_id, kept, replayed=last is kept), kept, heard=False)

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
        for name, top in fold.tops().items():
            self._tops[name] = max(top, self._tops.get(name, top))
        if answer is None:
            self._teller.put_off(Untold(opened.batch_id, opened.began_s, fold))
        return answer

    @property
    def behind(self) -> bool:
        """Whether the coordinator has still to be told of batches that are done."""
        return not self._teller.all_told

    def close(self) -> None:
        """The query has ended. What is still untold is told by its next start."""
        self._teller.close()

    # -- how it is said -------------------------------------------------------------------------------------------

    def _begin(self, batch_id: int, kept: KeptPin | None, patience: Patience) -> Opened:
        if not self._announced:
            self._announce(patience)
        try:
            begun = self._ask_to_begin(batch_id, kept, patience)
        except JobMissing as missing:
            self._check_lost(missing)
            self.log.warning("the coordinator does not know the job any more; creating it again")
            self._announce(patience)
            begun = self._ask_to_begin(batch_id, kept, patience)
        self._look_after(begun, patience)
        replayed = begun["replayed"] or kept is not None
        if kept is None:
            kept = KeptPin(begun["pin"], begun["watermark_token"], begun["latest_event_time"])
            self._pins.write(batch_id, kept)
        return Opened(self._batch(batch_id, kept, replayed), kept, heard=True)

    def _ask_to_begin(self, batch_id: int, kept: KeptPin | None, patience: Patience) -> dict[str, Any]:
        def ask(pin: dict[str, int | None]) -> dict[str, Any]:
            return self.coordinator.begin(self.query, self.run(), batch_id, self._pins.kept, pin, patience)

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
        if self._rules is None or isinstance(missing, JobDeleted):
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
            self.log.warning("going on without the coordinator: %s", error, extra={"batch": opened.batch_id})
            opened.heard = False
            return None

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
            self._begin(opened.batch_id, opened.kept, patience)
            self._report(opened, fold, patience)
        return call(opened, fold, patience)

    def _report(self, opened: Opened, fold: Fold, patience: Patience) -> bool:
        self.coordinator.report(self.query, self.run(), opened.batch_id, fold.reports(), patience)
        return True

    def _commit(self, opened: Opened, fold: Fold, patience: Patience) -> dict[str, Any]:
        answer = self.coordinator.commit(self.query, self.run(), opened.batch_id, fold.account(), patience)
        self._watermark = answer["watermark"]
        return answer

    def _tell(self, untold: Untold, silent_s: float, patience: Patience) -> None:
        """Tells the coordinator of a batch that was worked off without it.

        That it has heard nothing of the query for so long is nobody's silence.
        """
        if self._waited_s is None:
            self._waited_s = self.coordinator.waited_s
        self.coordinator.waited_s = max(self.coordinator.waited_s, self._waited_s + silent_s)
        kept = self._pins.read(untold.batch_id)
        assert kept is not None, "a batch is worked off with its pin beside the checkpoint"
        opened = self._begin(untold.batch_id, kept, patience)
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

    def _look_after(self, begun: dict[str, Any], patience: Patience) -> None:
        """What a begin tells beside the pin: a job that was lost and made again, a query that nobody expected."""
        self._watermark = begun["watermark"]
        if begun["joined"]:
            self.log.warning(
                "joins the job at the watermark %s: what it has from below that is late. Rules with expected_queries "
                "would have made the job wait for it.",
                begun["coalesced"],
            )
        if self._state_epoch not in (None, begun["state_epoch"]) and self._tops:
            self.log.warning("the coordinator had lost the job; telling it again what it knew")
            self.coordinator.declare(self.query, list(self._tops), self._tops, patience)
        self._state_epoch = begun["state_epoch"]
