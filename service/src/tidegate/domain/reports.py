"""The commands of reporters: event times, batches, heartbeats."""

from collections.abc import Mapping

from tidegate.domain.errors import BatchNotBegun, JobComplete, ReportsMissing
from tidegate.domain.numbers import above
from tidegate.domain.query import PINNED_WATERMARKS_KEPT, DelayedRows, PinnedWatermark, QueryState, Run
from tidegate.domain.records import Accounting, Answer, Begun, Effect
from tidegate.domain.state import DIRECT
from tidegate.domain.transition import Transition

Values = Mapping[str, int]
NONE: Values = {}
NO_DELAYS: Mapping[str, DelayedRows] = {}


class Reporting(Transition):
    """What Spark's drivers and executors say, and whoever reports without batches."""

    def report(
        self,
        max_event_times: Values,
        now_ms: int,
        *,
        min_event_times: Values = NONE,
        watermarks: Values = NONE,
        delays: Mapping[str, DelayedRows] = NO_DELAYS,
    ) -> Effect:
        """Takes in highest event times of reporters without batches; they count at once.

        ``min_event_times``: the lowest event time of each, for policies that follow the clock: in the look that takes
        the
        report in, no watermark of theirs goes beyond the lowest of these (of ``max_event_times``, where they are not
        given), so
        that a report does not make itself late. The next sweep goes without that cap.
        ``watermarks``: ready-made ones, for substreams under ``reported``. ``delays``: how far rows came behind the top
        that their substream had; said again, they count again.

        :raises JobComplete: after the end of input.
        :raises EventTimeMissing: for a watermark alone, where the policy is another than ``reported``.
        :raises TooManySubstreams: where there is no room for all of them; then nothing is taken in.
        """
        if self.complete:
            raise JobComplete()
        self._check_event_times(dict(max_event_times), dict(watermarks))
        self.check_room(DIRECT, [*max_event_times, *watermarks])
        self.tick(now_ms)
        self.heard_ms = self.now_ms
        seen, ready = self._set_aside_future(DIRECT, dict(max_event_times), dict(watermarks))
        self._measure(DIRECT, [*delays.items()], self.coalescer.merged)
        applied = self._observe(DIRECT, seen, ready)
        self._look(
            cap=min((min_event_times.get(name, max_event_time) for name, max_event_time in seen.items()), default=None)
        )
        return Effect(self._reply(), applied)

    def report_staged(
        self,
        run: Run,
        batch_id: int,
        partition: int,
        max_event_times: Values,
        counts: Values,
        now_ms: int,
        *,
        watermarks: Values = NONE,
        future: Values = NONE,
        delays: Mapping[str, DelayedRows] = NO_DELAYS,
    ) -> Effect:
        """Takes in what one partition of a batch saw; it counts when the batch commits. Too late for one that has.

        ``counts``: rows seen; ``future``: rows left out because their event times are too far ahead of the clock;
        ``delays``: how far rows came behind the top that their substream had when the batch began.

        :raises QueryFenced, QueryRetired, BatchNotBegun, EventTimeMissing, TooManySubstreams: see the errors.
        """
        query = self._check_spoken_to(run, batch_id)
        self._check_event_times(dict(max_event_times), dict(watermarks))
        if query.open and batch_id == query.latest:
            self.check_room(run.query, [*max_event_times, *watermarks, *counts, *future])
        self._hear(run.query, query, now_ms)
        staged = query.open and batch_id == query.latest
        if staged:
            seen, ready = self._set_aside_future(run.query, dict(max_event_times), dict(watermarks))
            query.stage(partition, seen, ready, dict(counts), dict(future), dict(delays))
        return Effect(self._reply(), staged)

    def begin(
        self,
        run: Run,
        batch_id: int,
        now_ms: int,
        known: PinnedWatermark | None = None,
        keep: int = PINNED_WATERMARKS_KEPT,
        waited_ms: int = 0,
        input_age_ms: int | None = 0,
    ) -> Begun:
        """Opens a batch and pins it, or gives the pin of one begun before; a new run takes the place of the old.

        A begin of a later batch commits the one before, for Spark begins N only after N - 1 has returned.
        ``waited_ms``: how long this run has waited for the coordinator in all. ``input_age_ms``: all that was there so
        long ago is in this batch or one before; that is how far its commit moves the idle clock. None: not known.

        :raises QueryFenced, QueryRetired, CheckpointConflict, BatchForgotten, PinConflict, JobComplete: see the errors.
        """
        query = self.queries.get(run.query)
        replay = given_up = False
        previous, was_open = None, False
        if query is not None:
            query.check_run(run)
            query.check_checkpoint(run)
            same = run.query_id == query.query_id
            if same:
                previous, was_open = query.latest, query.open
            replay = same and query.latest is not None and batch_id <= query.latest
            given_up = same and not replay and batch_id in query.pinned_watermarks
        pinned_watermark = (
            query.stored_pinned_watermark(batch_id, known) if query is not None and (replay or given_up) else None
        )
        if query is not None and replay:
            self.tick(now_ms)
            self._enter(run, query)
            if batch_id == query.latest:
                query.taken_over_by(run.run_id)
            query.wait(waited_ms)
            latest = self._latest_event_time()
            return Begun(self._reply(), pinned_watermark, True, False, latest, previous, was_open, self.revision)
        if self.complete:
            raise JobComplete()
        self.tick(now_ms)
        joined = self._joins(run.query)
        query = self._enter(run, query)
        query.move_to(run.query_id)
        query.wait(waited_ms)
        commits = query.open
        taken_in_ms = None if input_age_ms is None else self.now_ms - input_age_ms
        if commits:
            self._commit(run.query, query)
        if given_up or known is not None:
            # A pin that is known already holds the watermark while the batch before is committed, not only after.
            pinned_watermark = pinned_watermark if given_up or known is None else known.value
            query.open_batch(
                batch_id,
                pinned_watermark,
                self.coalescer.merged,
                self.now_ms,
                self.moment.observed_ms,
                taken_in_ms,
                keep,
            )
        if commits:
            self._look()
        if not query.open:
            pinned_watermark = self.coalescer.coalesced_watermark
            query.open_batch(
                batch_id,
                pinned_watermark,
                self.coalescer.merged,
                self.now_ms,
                self.moment.observed_ms,
                taken_in_ms,
                keep,
            )
        latest = self._latest_event_time()
        return Begun(self._reply(), pinned_watermark, False, joined, latest, previous, was_open, self.revision)

    def commit(
        self,
        run: Run,
        batch_id: int,
        accounting: Accounting | None,
        now_ms: int,
        waited_ms: int = 0,
        reported: int | None = None,
    ) -> Effect:
        """Makes what the batch staged effective, and takes the account of its rows. Once.

        ``reported``: how many counts were reported, by partition and substream: a store that has fewer has lost some.

        :raises QueryFenced, QueryRetired, BatchNotBegun, ReportsMissing: see the errors.
        """
        query = self._check_spoken_to(run, batch_id)
        open_yet = query.open and batch_id == query.latest
        if open_yet and reported is not None and reported > len(query.staged_counts):
            raise ReportsMissing(run.query, batch_id, reported - len(query.staged_counts))
        self._hear(run.query, query, now_ms)
        query.wait(waited_ms)
        if not open_yet:
            return Effect(self._reply(), False)
        self._commit(run.query, query)
        self._look()
        if accounting is not None:
            self._account(run.query, accounting)
        return Effect(self._reply(), True)

    def heartbeat(
        self, run: Run, observed_ms: int, now_ms: int, waited_ms: int = 0, after_batch: int | None = None
    ) -> Effect:
        """Caught up, no new data, seen to be so at ``observed_ms``: moves the idle clock, unless a batch is open.

        The moment is in the coordinator's own time, so a heartbeat that is late or repeated proves no more than it did.
        ``after_batch``: the last one that the query finished; unless it is the latest here, the coordinator has not
        heard all that the query took in, and nothing is proven.

        :raises QueryFenced, QueryRetired, CheckpointConflict: see the errors.
        """
        query = self.queries.get(run.query)
        if query is not None:
            query.check_run(run)
            query.check_checkpoint(run)
        self.tick(now_ms)
        query = self._enter(run, query)
        query.wait(waited_ms)
        if query.open or after_batch not in (None, query.latest):
            return Effect(self._reply(), False)
        query.observe_until(min(observed_ms, self.now_ms))
        self._look()
        return Effect(self._reply(), True)

    def sweep(self, now_ms: int) -> Answer:
        """What time alone has brought about."""
        self.tick(now_ms)
        self._look(tick=True)
        return self._reply()

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
        if forgotten:
            self._write("watermark_restored", watermark=watermark)
        return forgotten

    def _joins(self, query: str) -> bool:
        """Whether a query that begins now comes unexpected to a job that has a watermark."""
        known = self.queries.get(query)
        fresh = known is None or (known.retired and not any(name == query for name, _ in self.substreams))
        joins = fresh and self.config.joins_unexpected(query) and self.coalescer.coalesced_watermark is not None
        if joins:
            self._write("joined", query=query)
        return joins

    def _enter(self, run: Run, query: QueryState | None) -> QueryState:
        """The query, under this run from now on."""
        if query is None:
            query = self.queries[run.query] = QueryState(run.query_id, run.run_id, self.now_ms)
        fenced = query.enter(run.run_id, self.now_ms)
        if fenced is not None:
            self._write("fenced", query=run.query, run_id=fenced)
        self.contacts[run.query] = self.moment.observed_ms
        self.heard_ms = self.now_ms
        return query

    def _check_spoken_to(self, run: Run, batch_id: int) -> QueryState:
        """The query whose batch ``run`` speaks of.

        :raises QueryFenced, QueryRetired, BatchNotBegun: see the errors.
        """
        query = self.queries.get(run.query)
        if query is None:
            raise BatchNotBegun(run.query, batch_id)
        query.check_speaker(run, batch_id)
        return query

    def _hear(self, name: str, query: QueryState, now_ms: int) -> None:
        self.tick(now_ms)
        query.last_contact_ms = self.heard_ms = self.now_ms
        self.contacts[name] = self.moment.observed_ms
