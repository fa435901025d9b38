"""The commands of a job's owner: its rules, its end and new beginnings, and the holds of its operators."""

from tidegate.domain.actions import Acting
from tidegate.domain.coalescer import Coalescer
from tidegate.domain.config import JobConfig
from tidegate.domain.disorder import Disorder
from tidegate.domain.errors import BatchOpen, HoldActive, HoldExists, HoldNotFound, JobComplete
from tidegate.domain.journal import UNEXPLAINED, Why
from tidegate.domain.ledger import Ledger
from tidegate.domain.policy import Reported
from tidegate.domain.records import Answer, Effect, Hold
from tidegate.domain.state import DIRECT
from tidegate.domain.substream import PLACEHOLDER
from tidegate.domain.throttle import offer


class Owning(Acting):
    """What concerns the whole job."""

    # -- rules ----------------------------------------------------------------------------------------------------

    def change(self, config: JobConfig, now_ms: int, why: Why = UNEXPLAINED) -> Answer:
        """Puts other rules in force at once. Watermarks reached stand; tops are judged anew by the new policies.

        A substream whose policy is the same keeps its state. Who is idle by silence is decided anew.
        """
        self.tick(now_ms)
        if self.config.idle_timeout_ms is None and config.idle_timeout_ms is not None:
            # Nobody watched for the silence of those who say nothing of it themselves: it begins to count now.
            for (query, _), substream in self.substreams.items():
                if query == DIRECT and not substream.done:
                    substream.last_event_ms = self.moment.observed_ms
        self.config = config
        self.revision += 1
        self.coalescer.retain(config.max_retention_ms)
        self._write("config", actor=why.actor, reason=why.reason)
        for (query, name), substream in self.substreams.items():
            if substream.idle and not (substream.done or substream.told or self._is_silent(query, substream)):
                substream.idle, substream.since_ms = False, self.now_ms
            if name != PLACEHOLDER and not substream.done:
                substream.change(config.policy_of(name), self.moment)
        self._expect()
        self._look()
        return self._reply()

    def _expect(self) -> None:
        """Each expected query that has shown nothing yet holds the watermark; others no longer do."""
        shown = {query for query, name in self.substreams if name != PLACEHOLDER}
        for query, name in list(self.substreams):
            if name == PLACEHOLDER and query not in self.config.expected_queries:
                del self.substreams[query, name]
                if query not in self.queries:
                    self.contacts.pop(query, None)
        for query in self.config.expected_queries:
            known = self.queries.get(query)
            if query not in shown and (query, PLACEHOLDER) not in self.substreams and not (known and known.retired):
                self._new_substream(query, PLACEHOLDER, Reported())
                self.contacts.setdefault(query, self.moment.observed_ms)

    # -- the end of input, and new beginnings ---------------------------------------------------------------------

    def finish(self, now_ms: int, why: Why = UNEXPLAINED, up_to: int | None = None) -> Effect:
        """End of input: all substreams are done, ``C`` goes to the first frame boundary above the job's top, or at
        ``up_to`` or above it, if that is higher. A job that is complete moves on if ``up_to`` is above its ``C``.

        :raises BatchOpen: while a batch is open, for its rows are not all in yet.
        :raises HoldActive: while an operator holds the watermark.
        """
        if self.complete and not self._ends_further(up_to):
            self.tick(now_ms)
            return Effect(self._reply(), False)
        for name, query in sorted(self.queries.items(), key=lambda item: item[0].encode()):
            if query.open:
                raise BatchOpen(name, query.latest)
        for held in self._holds():
            if held.stands(max(now_ms, self.now_ms)):
                raise HoldActive(held.hold, held.at_most)
        self.tick(now_ms)
        last = offer(
            self.config.throttle, self.coalescer.max_watermark, self.coalescer.coalesced_watermark, self.numbers
        )
        self.coalescer.advance(last, self.now_ms)
        self._end(up_to)
        if not self.complete:
            self.complete, self._completed_ms = True, self.moment.observed_ms
        self._act("complete", why, up_to=up_to)
        return Effect(self._reply(), True)

    def _ends_further(self, up_to: int | None) -> bool:
        coalesced_watermark = self.coalescer.coalesced_watermark
        return up_to is not None and (coalesced_watermark is None or up_to > coalesced_watermark)

    def reopen(self, now_ms: int, why: Why = UNEXPLAINED) -> Effect:
        """Takes an end of input back, but never the watermark: what comes from below it is late.

        Reports were refused since then, so that time is nobody's silence.
        """
        self.tick(now_ms)
        applied, self.complete = self.complete, False
        if applied:
            self.unattended_ms += self.moment.observed_ms - self._completed_ms
            self._act("reopen", why)
            self._look()
        return Effect(self._reply(), applied)

    def reset(self, now_ms: int, state_epoch: str, why: Why = UNEXPLAINED) -> Answer:
        """A new incarnation under the same rules: all else is forgotten, the watermark too. The record stays."""
        self.tick(now_ms)
        self.incarnation += 1
        self.state_epoch = state_epoch
        self.coalescer = Coalescer(self.now_ms, self.now_ms, self.numbers, throttled=self.coalescer.throttled)
        self.coalescer.retain(self.config.max_retention_ms)
        self.complete = False
        for table in (
            self.substreams,
            self.queries,
            self.contacts,
            self.holds,
            self.counts,
            self.reported,
            self.future,
            self.diverted,
            self.delays,
        ):
            table.clear()
        self.max_event_time, self.disorder, self.ledger = None, Disorder(), Ledger()
        self.emitted, self._look_due, self._lost_at_look = (None, None), False, None
        self._act("reset", why)
        self._expect()
        return self._reply()

    # -- holds ----------------------------------------------------------------------------------------------------

    def hold(self, hold: str, at_most: int, duration_ms: int | None, now_ms: int, why: Why = UNEXPLAINED) -> Effect:
        """Keeps C, and with it the watermark, at or below ``at_most``; where it is beyond already, where it is.

        Said again, it lasts as long as the later of the two.

        :raises HoldExists: where there is one with another value under that name.
        :raises JobComplete: after the end of input.
        """
        if self.complete:
            raise JobComplete()
        present = self.holds.get(hold)
        stands = present is not None and present.stands(max(now_ms, self.now_ms))
        if present is not None and stands and present.at_most != at_most:
            raise HoldExists(hold, present.at_most)
        self.tick(now_ms)
        expires_ms = None if duration_ms is None else self.now_ms + duration_ms
        if present is not None and stands:
            longer = present.expires_ms is not None and (expires_ms is None or expires_ms > present.expires_ms)
            if not longer:
                return Effect(self._reply(), False)
        elif present is not None:
            self._look_due = True  # what it had held back may go on now
        self.holds[hold] = Hold(hold, at_most, expires_ms, why.reason)
        self._act("hold", why, hold=hold, at_most=at_most)
        return Effect(self._reply(), True)

    def release(self, hold: str, now_ms: int, why: Why = UNEXPLAINED) -> Answer:
        """Ends a hold.

        :raises HoldNotFound: for one that is not there.
        """
        if hold not in self.holds:
            raise HoldNotFound(hold)
        self.tick(now_ms)
        del self.holds[hold]
        self._act("release", why, hold=hold)
        self._look()
        return self._reply()
