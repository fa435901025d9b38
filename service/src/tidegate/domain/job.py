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

from tidegate.domain.config import JobConfig
from tidegate.domain.errors import BatchNotBegun, BatchOpen, JobComplete, SubstreamNotFound
from tidegate.domain.numbers import EXACT_DOUBLE, above, highest
from tidegate.domain.query import PINS_KEPT, KnownPin, QueryState, Run
from tidegate.domain.records import Accounting, Answer, Begun, Effect
from tidegate.domain.state import DIRECT, JobState
from tidegate.domain.substream import Substream
from tidegate.domain.throttle import FrameThrottle


class JobMachine(JobState):
    """One job, from its creation on."""

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
            self.substreams[query, name] = Substream(last_event_ms=self._observed(query, self.now_ms))
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
        query = self._spoken_to(run, batch_id, now_ms)
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
            query.enter(run.run_id, self.now_ms)
            if batch_id == query.latest:
                query.taken_over_by(run.run_id)
            query.wait(waited_ms)
            return Begun(self.answer(), pin, replayed=True)
        if self.complete:
            raise JobComplete()
        self._tick(now_ms)
        if query is None:
            query = self.queries[run.query] = QueryState(run.query_id, run.run_id, self.now_ms)
        query.enter(run.run_id, self.now_ms)
        query.move_to(run.query_id)
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
        query = self._spoken_to(run, batch_id, now_ms)
        query.wait(waited_ms)
        if batch_id != query.latest or not query.open:
            return Effect(self.answer(), False)
        self._commit(run.query, query)
        if accounting is not None:
            self._account(run.query, accounting)
        return Effect(self.answer(), True)

    def heartbeat(self, run: Run, observed_ms: int, now_ms: int, waited_ms: int = 0) -> Effect:
        """Caught up, no new data, seen to be so at ``observed_ms``: moves the idle clock, unless a batch is open.

        The moment is in the coordinator's own time, so a heartbeat that is late or repeated proves no more than it did.

        :raises QueryFenced, CheckpointConflict: see the errors.
        """
        query = self.queries.get(run.query)
        if query is not None:
            query.check_run(run)
            query.check_checkpoint(run)
        self._tick(now_ms)
        if query is None:
            query = self.queries[run.query] = QueryState(run.query_id, run.run_id, self.now_ms)
        query.enter(run.run_id, self.now_ms)
        query.wait(waited_ms)
        if query.open:
            return Effect(self.answer(), False)
        query.observe_until(min(observed_ms, self.now_ms))
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

    def _spoken_to(self, run: Run, batch_id: int, now_ms: int) -> QueryState:
        """The query whose batch ``run`` speaks of.

        :raises QueryFenced, BatchNotBegun: see the errors.
        """
        query = self.queries.get(run.query)
        if query is None:
            raise BatchNotBegun(run.query, batch_id)
        query.check_speaker(run, batch_id)
        self._tick(now_ms)
        query.last_contact_ms = self.now_ms
        return query
