"""The machine of one job: commands in, answers out, one atomic transition each.

Concerns it deals with:

1. *Merging.* The coalesced watermark ``C`` is the lowest watermark over the substreams that are live, throttled, and
   never goes back. A substream of which nothing is known yet counts as "no watermark" and holds everything.
2. *Batches.* What a Spark batch reports is staged and takes effect when the batch commits. A batch gets one pin, the
   ``C`` of its begin; the emitted watermark ``W`` never passes the pin of an open batch.
3. *Silence.* A substream is idle when its query is known to have found nothing of it for the idle timeout: known up to
   the begin of the last committed batch, or the last heartbeat, and no further; and what the query spent waiting for
   a coordinator that was away is no silence of anybody.
4. *Repetition.* Any command may be sent again, late, or by a run that was replaced; it then changes nothing.

Every command takes ``now_ms``; time that goes back is taken as standing still.
"""

from tidegate.domain.coalescer import Coalescer, OpenPin
from tidegate.domain.config import JobConfig
from tidegate.domain.errors import BatchNotBegun, BatchOpen, JobComplete, SubstreamNotFound
from tidegate.domain.numbers import EXACT_DOUBLE, above, highest
from tidegate.domain.query import PINS_KEPT, KnownPin, QueryState, Run
from tidegate.domain.records import (
    Accounting,
    Answer,
    Begun,
    Counts,
    Effect,
    Holder,
    HolderReason,
    QueryRow,
    SubstreamRow,
)
from tidegate.domain.substream import Substream, SubstreamKey
from tidegate.domain.throttle import FrameThrottle

DIRECT = ""
"""The query name under which reports without batches are kept."""


class JobMachine:
    """One job, from its creation on."""

    def __init__(self, config: JobConfig, now_ms: int, incarnation: int = 1, state_epoch: str = "") -> None:
        self.config = config
        self.incarnation = incarnation
        self.state_epoch = state_epoch
        self.now_ms = now_ms
        self.coalescer = Coalescer(now_ms, now_ms)
        self.complete = False
        self.substreams: dict[SubstreamKey, Substream] = {}
        self.queries: dict[str, QueryState] = {}
        self.counts: dict[SubstreamKey, Counts] = {}
        self.reported: dict[SubstreamKey, int] = {}
        self.tokens_ignored = 0

    # -- commands of the owner ------------------------------------------------------------------------------------

    def change(self, config: JobConfig, now_ms: int) -> Answer:
        """Puts other rules in force at once. Watermarks reached stand; tops are judged anew by the new policy."""
        self._tick(now_ms)
        self.config = config
        for substream in self.substreams.values():
            substream.idle = False
            if substream.top is not None and not substream.done:
                substream.watermark = highest(substream.watermark, config.policy.watermark(substream.top))
        self._look()
        return self.answer()

    def declare(self, query: str, names: list[str], now_ms: int) -> Effect:
        """Makes substreams known before their first event, so that they hold the watermark back from the start.

        :raises JobComplete: for a new one, after the end of input.
        """
        new = [name for name in names if (query, name) not in self.substreams]
        if new and self.complete:
            raise JobComplete()
        self._tick(now_ms)
        for name in new:
            self.substreams[query, name] = Substream(last_event_ms=self._observed(query))
        self._look()
        return Effect(self.answer(), bool(new))

    def done(self, query: str, names: list[str], now_ms: int) -> Effect:
        """Marks substreams as ended: they never hold the watermark again, and what they led to goes on counting.

        :raises SubstreamNotFound: for one that is not known; then none is marked.
        """
        unknown = [name for name in names if (query, name) not in self.substreams]
        if unknown:
            raise SubstreamNotFound(query, unknown)
        self._tick(now_ms)
        new = [name for name in names if not self.substreams[query, name].done]
        for name in new:
            self.substreams[query, name].done = True
        self._look()
        return Effect(self.answer(), bool(new))

    def finish(self, now_ms: int) -> Effect:
        """End of input: all substreams are done, ``C`` goes to the first frame boundary above the job's top.

        :raises BatchOpen: while a batch is open, for its rows are not all in yet.
        """
        for name, query in sorted(self.queries.items()):
            if query.open and not self.complete:
                raise BatchOpen(name, query.latest)
        self._tick(now_ms)
        if self.complete:
            return Effect(self.answer(), False)
        for substream in self.substreams.values():
            substream.done = True
        self._look()
        top = highest(*(substream.top for substream in self.substreams.values()))
        if top is not None:
            throttle = self.config.throttle
            end = min(top + 1, EXACT_DOUBLE.highest)
            if isinstance(throttle, FrameThrottle):
                end = throttle.frame.higher(top)
            self.coalescer.advance(end, self.now_ms)
            self.coalescer.release(None, self.now_ms)
        self.complete = True
        return Effect(self.answer(), True)

    # -- commands of reporters ------------------------------------------------------------------------------------

    def report(self, tops: dict[str, int], now_ms: int) -> Effect:
        """Takes in highest event times of reporters without batches; they count at once.

        :raises JobComplete: after the end of input.
        """
        if self.complete:
            raise JobComplete()
        self._tick(now_ms)
        self._observe(DIRECT, tops)
        self._look()
        return Effect(self.answer(), True)

    def report_staged(
        self, run: Run, batch_id: int, partition: int, tops: dict[str, int], counts: dict[str, int], now_ms: int
    ) -> Effect:
        """Takes in what one partition of a batch saw; it counts when the batch commits. Too late for one that has.

        :raises QueryFenced, BatchNotBegun: see the errors.
        """
        query = self.queries.get(run.query)
        if query is None:
            raise BatchNotBegun(run.query, batch_id)
        query.check_speaker(run, batch_id)
        self._tick(now_ms)
        query.last_contact_ms = self.now_ms
        staged = query.open and batch_id == query.latest
        if staged:
            query.stage(partition, tops, counts)
        return Effect(self.answer(), staged)

    def begin(
        self, run: Run, batch_id: int, now_ms: int, known: KnownPin | None = None, keep: int = PINS_KEPT,
        waited_ms: int = 0,
    ) -> Begun:  # fmt: skip
        """Opens a batch and pins it, or gives the pin of one begun before; a new run takes the place of the old.

        A begin of a later batch commits the one before, for Spark begins N only after N - 1 has returned.
        ``waited_ms``: how long this run has waited for the coordinator in all.

        :raises QueryFenced, CheckpointConflict, BatchForgotten, PinConflict, JobComplete: see the errors.
        """
        query = self.queries.get(run.query)
        replay = False
        if query is not None:
            query.check_run(run)
            query.check_checkpoint(run)
            replay = run.query_id == query.query_id and query.latest is not None and batch_id <= query.latest
        if query is not None and replay:
            pin = query.stored_pin(batch_id, known)
            self._tick(now_ms)
            if query.enter(run, self.now_ms) and batch_id == query.latest:
                query.unstage()
            query.wait(waited_ms)
            return Begun(self.answer(), pin, replayed=True)
        if self.complete:
            raise JobComplete()
        self._tick(now_ms)
        if query is None:
            query = self.queries[run.query] = QueryState(run.query_id, run.run_id, self.now_ms)
        query.enter(run, self.now_ms)
        query.wait(waited_ms)
        if query.open:
            self._commit(run.query, query)
        pin = known.value if known is not None else self.coalescer.coalesced
        query.open_batch(batch_id, pin, self.now_ms, keep)
        return Begun(self.answer(), pin, replayed=False)

    def commit(self, run: Run, batch_id: int, accounting: Accounting | None, now_ms: int, waited_ms: int = 0) -> Effect:
        """Makes what the batch staged effective, and takes the account of its rows. Once.

        :raises QueryFenced, BatchNotBegun: see the errors.
        """
        query = self.queries.get(run.query)
        if query is None:
            raise BatchNotBegun(run.query, batch_id)
        query.check_speaker(run, batch_id)
        self._tick(now_ms)
        query.last_contact_ms = self.now_ms
        query.wait(waited_ms)
        if batch_id != query.latest or not query.open:
            return Effect(self.answer(), False)
        self._commit(run.query, query)
        if accounting is not None:
            self._account(run.query, accounting)
        return Effect(self.answer(), True)

    def heartbeat(self, run: Run, age_ms: int, now_ms: int, waited_ms: int = 0) -> Effect:
        """ "Caught up, no new data", observed ``age_ms`` ago: moves the query's idle clock, unless a batch is open.

        :raises QueryFenced, CheckpointConflict: see the errors.
        """
        query = self.queries.get(run.query)
        if query is not None:
            query.check_run(run)
            query.check_checkpoint(run)
        self._tick(now_ms)
        if query is None:
            query = self.queries[run.query] = QueryState(run.query_id, run.run_id, self.now_ms)
        query.enter(run, self.now_ms)
        query.wait(waited_ms)
        if query.open:
            return Effect(self.answer(), False)
        query.observe_until(self.now_ms - age_ms)
        self._look()
        return Effect(self.answer(), True)

    def sweep(self, now_ms: int) -> Answer:
        """What time alone has brought about."""
        self._tick(now_ms)
        self._look()
        return self.answer()

    def heal(self, incarnation: int, watermark: int | None) -> bool:
        """Takes a watermark that this job is proven to have emitted; returns whether it had been forgotten.

        The proof (a valid token) is the caller's business. An older incarnation proves nothing about this one.
        """
        if incarnation < self.incarnation:
            self.tokens_ignored += 1
            return False
        forgotten = incarnation > self.incarnation or above(watermark, self.coalescer.watermark)
        self.incarnation = incarnation
        self.coalescer.heal(watermark, self.now_ms)
        return forgotten

    # -- reads ----------------------------------------------------------------------------------------------------

    def answer(self) -> Answer:
        return Answer(
            self.incarnation,
            self.state_epoch,
            self.now_ms,
            self.coalescer.watermark,
            self.coalescer.coalesced,
            self.complete,
            self._holder(),
        )

    def substream_table(self, now_ms: int) -> list[SubstreamRow]:
        """All substreams, by query and name; states as they are at ``now_ms``."""
        now_ms = max(now_ms, self.now_ms)
        timeout = self.config.idle_timeout_ms
        rows = []
        for (query, name), s in sorted(self.substreams.items()):
            lost_ms = self._lost(query)
            state = s.state(now_ms - lost_ms, timeout)
            counts, reported = self.counts.get((query, name), Counts()), self.reported.get((query, name), 0)
            last_event_ms = s.last_event_ms + lost_ms
            rows.append(SubstreamRow(query, name, state, s.watermark, s.top, last_event_ms, reported, counts))
        return rows

    def query_table(self) -> list[QueryRow]:
        """All queries, by name."""
        rows = []
        for name, q in sorted(self.queries.items()):
            pin = None if q.latest is None else q.pins.get(q.latest)
            clock_ms = None if q.idle_clock_ms is None else q.idle_clock_ms + q.lost_ms
            rows.append(
                QueryRow(name, q.query_id, q.run_id, q.latest, q.open, pin, q.begun_ms, clock_ms, q.last_contact_ms)
            )
        return rows

    # -- the transition -------------------------------------------------------------------------------------------

    def _tick(self, now_ms: int) -> None:
        self.now_ms = max(self.now_ms, now_ms)

    def _lost(self, query: str) -> int:
        return self.queries[query].lost_ms if query in self.queries else 0

    def _observed(self, query: str) -> int:
        """Now, in the observed time of a query."""
        return self.now_ms - self._lost(query)

    def _observe(self, query: str, tops: dict[str, int]) -> None:
        for name, top in tops.items():
            observed_ms = self._observed(query)
            substream = self.substreams.setdefault((query, name), Substream(observed_ms))
            substream.observe(top, self.config.policy, observed_ms)

    def _commit(self, name: str, query: QueryState) -> None:
        self._observe(name, query.staged)
        assert query.begun_ms is not None, "an open batch was begun"
        query.observe_until(query.begun_ms)
        for (_partition, substream), count in query.staged_counts.items():
            key = name, substream
            self.reported[key] = self.reported.get(key, 0) + count
        query.open = False
        query.unstage()
        self._look()

    def _account(self, query: str, accounting: Accounting) -> None:
        for name, counts in accounting.by_substream():
            key = query, name
            self.counts[key] = self.counts.get(key, Counts()) + counts

    def _look(self) -> None:
        """Decides who is idle, merges the rest, releases what no open batch holds back."""
        if self.complete:
            return
        self._fall_idle()
        live = [substream.watermark for substream in self.substreams.values() if substream.live]
        if self.substreams:
            self.coalescer.merge(live, self.config.throttle, self.now_ms)
        self.coalescer.release(self._open_pin(), self.now_ms)

    def _fall_idle(self) -> None:
        timeout = self.config.idle_timeout_ms
        if timeout is None:
            return
        for (query, _), substream in self.substreams.items():
            clock = self.now_ms if query == DIRECT else None
            if query in self.queries:
                clock = self.queries[query].idle_clock_ms
            if not substream.done and clock is not None and clock - substream.last_event_ms >= timeout:
                substream.idle = True

    def _open_pin(self) -> OpenPin | None:
        pins = (OpenPin(q.pins[q.latest], name) for name, q in self.queries.items() if q.open and q.latest is not None)
        return min(pins, key=OpenPin.order, default=None)

    def _holder(self) -> Holder | None:
        pin = self._open_pin()
        if pin is not None and above(self.coalescer.coalesced, pin.value):
            batch_id = self.queries[pin.query].latest
            return Holder("open_batch", pin.query, None, batch_id, self.coalescer.watermark_since_ms)
        live = [(key, s) for key, s in self.substreams.items() if s.live]
        if self.complete or not live:
            return None
        (query, name), lowest = min(
            live, key=lambda item: (item[1].watermark is not None, item[1].watermark or 0, "/".join(item[0]).encode())
        )
        reason: HolderReason = "never_reported" if lowest.top is None else "slow"
        if lowest.state(self._observed(query), self.config.idle_timeout_ms) == "blocked":
            reason = "blocked"
        return Holder(reason, query, name, None, self.coalescer.coalesced_since_ms)
