"""The state of one job, and what can be read from it."""

from tidegate.domain.coalescer import Coalescer, LowestPinnedWatermark
from tidegate.domain.config import JobConfig
from tidegate.domain.disorder import Disorder
from tidegate.domain.journal import UNEXPLAINED, Journal, Why
from tidegate.domain.ledger import Ledger
from tidegate.domain.numbers import EXACT_DOUBLE, NumberRange, above, by_value
from tidegate.domain.policy import Moment
from tidegate.domain.query import QueryState
from tidegate.domain.records import (
    Answer,
    Counts,
    Hold,
    Holder,
    HolderReason,
    QueryRow,
    SubstreamRow,
    Summary,
)
from tidegate.domain.sketch import Sketch
from tidegate.domain.substream import PLACEHOLDER, Substream, SubstreamKey, member
from tidegate.domain.throttle import offer

DIRECT = ""
"""The query name under which reports without batches are kept."""


class JobState:
    """What is known of one job. Reading it changes nothing; its transitions belong to the commands of the machine.

    ``unattended_ms`` is how long nobody looked after the job at all (its coordinators, or their store, were away). The
    job's
    *observed* time leaves it out, and the limits on silence and slowness are judged in that; a wall clock is not.
    ``absent_after_ms``: a time without any command that is longer than this is nobody's silence, where the job waited
    for time to bring something (for then it is looked at now and then); None: all time counts, as in the traces.
    ``most_substreams``: so many may become known by reports and declarations. ``why`` it was created, and by whom.
    """

    def __init__(
        self,
        config: JobConfig,
        now_ms: int,
        incarnation: int = 1,
        state_epoch: str = "",
        numbers: NumberRange = EXACT_DOUBLE,
        absent_after_ms: int | None = None,
        most_substreams: int | None = None,
        why: Why = UNEXPLAINED,
    ) -> None:
        self.config = config
        self.numbers = numbers
        self.incarnation = incarnation
        self.revision = 1
        self.state_epoch = state_epoch
        self.now_ms = now_ms
        self.unattended_ms = 0
        self.max_event_time: int | None = None
        self._look_due = False
        self._lost_at_look: int | None = None
        self._completed_ms = now_ms
        self.coalescer = Coalescer(now_ms, now_ms, numbers)
        self.coalescer.retain(config.max_retention_ms)
        self.complete = False
        self.substreams: dict[SubstreamKey, Substream] = {}
        self.queries: dict[str, QueryState] = {}
        self.contacts: dict[str, int] = {}
        self.holds: dict[str, Hold] = {}
        self.counts: dict[SubstreamKey, Counts] = {}
        self.reported: dict[SubstreamKey, int] = {}
        self.future: dict[SubstreamKey, int] = {}
        self.diverted: dict[SubstreamKey, int] = {}
        self.delays: dict[SubstreamKey, Sketch] = {}
        self.disorder = Disorder()
        self.total = Counts()
        self.future_total = self.diverted_total = 0
        self.ledger = Ledger()
        self.tokens_ignored = self.emissions = 0
        self.heard_ms: int | None = None
        self.limits: dict[str, int] = {}
        self.journal = Journal()
        self.absent_after_ms = absent_after_ms
        self.most_substreams = most_substreams
        self._start(why)

    def _start(self, why: Why) -> None:
        """What a new job begins with."""

    @property
    def moment(self) -> Moment:
        return Moment(self.now_ms, self.now_ms - self.unattended_ms)

    def observed(self, query: str, now_ms: int | None = None) -> int:
        """A moment in the observed time of a query; for reports without batches that is the job's."""
        at_ms = self.now_ms if now_ms is None else now_ms
        return self.queries[query].observed(at_ms) if query in self.queries else at_ms - self._lost(query)

    def _lost(self, query: str) -> int:
        if query == DIRECT:
            return self.unattended_ms
        return self.queries[query].unattended_ms if query in self.queries else 0

    # -- reads ----------------------------------------------------------------------------------------------------

    def answer(self) -> Answer:
        return Answer(
            self.incarnation,
            self.state_epoch,
            self.now_ms,
            self.coalescer.watermark,
            self.coalescer.coalesced_watermark,
            self.complete,
            self._holder(),
        )

    def substream_table(self, now_ms: int) -> list[SubstreamRow]:
        """All substreams, by query and name; states as they are at ``now_ms``."""
        now_ms = max(now_ms, self.now_ms)
        timeout = self.config.idle_timeout_ms
        rows = []
        for key, s in sorted(self.substreams.items()):
            query, name = key
            if name == PLACEHOLDER:
                continue
            state = "done" if self.complete else s.state(self.observed(query, now_ms), timeout)
            last_event_ms = s.last_event_ms + self._lost(query)
            since_ms = s.since_ms
            if self.complete and not s.done:
                since_ms = self._completed_ms + self.unattended_ms
            elif state == "blocked" and timeout is not None:
                since_ms = last_event_ms + timeout
            lag = None if state == "done" else s.lag
            reported, future = self.reported.get(key, 0), self.future.get(key, 0)
            counts = self.counts.get(key, Counts())
            rows.append(
                SubstreamRow(
                    query,
                    name,
                    state,
                    since_ms,
                    s.watermark,
                    s.max_event_time,
                    lag,
                    last_event_ms,
                    reported,
                    future,
                    counts,
                )
            )
        return rows

    def query_table(self) -> list[QueryRow]:
        """All queries, by name."""
        rows = []
        for name, q in sorted(self.queries.items()):
            pinned_watermark = None if q.latest is None else q.pinned_watermarks.get(q.latest)
            clock_ms = None if q.idle_clock_ms is None else q.idle_clock_ms + q.unattended_ms
            rows.append(
                QueryRow(
                    name,
                    q.query_id,
                    q.run_id,
                    q.latest,
                    q.open,
                    pinned_watermark,
                    q.begun_ms,
                    clock_ms,
                    q.last_contact_ms,
                    q.open and q.released,
                    q.retired,
                )
            )
        return rows

    def summary(self) -> Summary:
        named = [s for (_, name), s in self.substreams.items() if name != PLACEHOLDER]
        done = len(named) if self.complete else sum(s.done for s in named)
        idle = 0 if self.complete else sum(s.idle and not s.done for s in named)
        return Summary(
            self.max_event_time,
            self.coalescer.max_watermark,
            len(named) - idle - done,
            idle,
            done,
            self.coalescer.all_idle,
            self.total,
            self.future_total,
            self.tokens_ignored,
            self.emissions,
            self.coalescer.throttled,
            self.heard_ms,
            sum(q.open for q in self.queries.values()),
            dict(self.limits),
            tuple(self.holds[hold] for hold in sorted(self.holds)),
            tuple(sorted(query for query, name in self.substreams if name == PLACEHOLDER)),
        )

    def next_change_ms(self) -> int | None:
        """From when on, in observed time, a sweep may change something; None if time alone will not."""
        if self.complete:
            return None
        at, rules = self.moment, self.config
        times: list[int | None] = [at.observed_ms] if self._look_due else []
        if self._lost_at_look not in (None, self.unattended_ms):
            # While nobody looked wall clocks went on, and those who follow one have not been told yet.
            times += [at.observed_ms for s in self.substreams.values() if s.live and s.policy.follows_clock]
        for (query, _), s in self.substreams.items():
            if s.live:
                times.append(s.state_of_policy.next_change_ms(s.reading, at))
                if query == DIRECT and rules.idle_timeout_ms is not None:
                    times.append(s.last_event_ms + rules.idle_timeout_ms)
        if rules.query_timeout_ms is not None:
            times += [contact + rules.query_timeout_ms for contact in self.contacts.values()]
        if rules.max_batch_hold_ms is not None:
            held = (q for q in self.queries.values() if q.open and not q.released)
            times += [q.begun_observed_ms + rules.max_batch_hold_ms for q in held]
        times += [h.expires_ms - self.unattended_ms for h in self.holds.values() if h.expires_ms is not None]
        retention = self.coalescer.retention
        if retention is not None:
            present = self.coalescer.max_watermark if retention.boundary is None else retention.cells[0]
            if present is not None and self._would_be_emitted(present):
                times.append(at.observed_ms)
            times.append(retention.next_change_ms(self._would_be_emitted))
        return min((time for time in times if time is not None), default=None)

    def _would_be_emitted(self, watermark: int) -> bool:
        hold = self._hold()
        ideal = watermark if hold is None else min(watermark, hold.at_most)
        return offer(self.config.throttle, ideal, self.coalescer.coalesced_watermark, self.numbers) is not None

    # -- who holds ------------------------------------------------------------------------------------------------

    def _open_pin(self) -> LowestPinnedWatermark | None:
        pinned_watermarks = (
            LowestPinnedWatermark(q.pinned_watermarks[q.latest], name)
            for name, q in self.queries.items()
            if q.open and not q.released and q.latest is not None
        )
        return min(pinned_watermarks, key=LowestPinnedWatermark.order, default=None)

    def _holds(self) -> list[Hold]:
        """The holds, lowest first; by name where two are equal."""
        return sorted(self.holds.values(), key=lambda hold: (hold.at_most, hold.hold.encode()))

    def _hold(self) -> Hold | None:
        return next(iter(self._holds()), None)

    def _lowest(self) -> tuple[SubstreamKey, Substream] | None:
        """The live substream that is furthest behind."""
        live = ((key, s) for key, s in self.substreams.items() if s.live)
        return min(live, key=lambda item: (by_value(item[1].reading), member(item[0]).encode()), default=None)

    def _holder(self) -> Holder | None:
        pinned_watermark, lowest = self._open_pin(), self._lowest()
        if pinned_watermark is not None and (
            lowest is None or above(self.coalescer.coalesced_watermark, pinned_watermark.value)
        ):
            batch = self.queries[pinned_watermark.query]
            since_ms = self.coalescer.watermark_since_ms
            return Holder("open_batch", pinned_watermark.query, None, batch.latest, since_ms, begun_ms=batch.begun_ms)
        if self.complete:
            return None
        since_ms = self.coalescer.coalesced_watermark_since_ms
        hold, furthest = self._hold(), self.coalescer.max_watermark if lowest is None else lowest[1].reading
        if hold is not None and above(furthest, hold.at_most):
            return Holder("hold", "", None, None, since_ms, hold.hold)
        if lowest is None:
            return None
        (query, name), substream = lowest
        if name == PLACEHOLDER:
            return Holder("missing_query", query, None, None, since_ms)
        reason: HolderReason = "slow"
        if substream.state(self.observed(query), self.config.idle_timeout_ms) == "blocked":
            reason = "blocked"
        elif substream.max_event_time is None and substream.reading is None:
            reason = "never_reported"
        last_event_ms = substream.last_event_ms + self._lost(query)
        return Holder(reason, query, name, None, since_ms, last_event_ms=last_event_ms)
