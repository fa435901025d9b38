"""The transition that every command ends in: who is idle, what the rest comes to, what may be relied upon."""

from collections import Counter
from collections.abc import Iterable

from tidegate.domain.disorder import behind
from tidegate.domain.errors import EventTimeMissing, TooManySubstreams
from tidegate.domain.journal import Kind, named
from tidegate.domain.numbers import above, by_value, highest
from tidegate.domain.policy import Policy, Reported, TargetState
from tidegate.domain.query import DelayedRows, QueryState
from tidegate.domain.records import Accounting, Answer, Counts
from tidegate.domain.sketch import Sketch
from tidegate.domain.state import DIRECT, JobState
from tidegate.domain.substream import PLACEHOLDER, Substream, SubstreamKey, member
from tidegate.domain.throttle import FrameThrottle

POLICY_LIMITS = ("max_delay_ms", "max_lull_ms", "wall_clock_lag_ms")
LIMITS = ("idle_timeout_ms", "query_timeout_ms", "max_retention_ms", "max_batch_hold_ms", *POLICY_LIMITS)
"""What may let the watermark pass somebody."""


class Transition(JobState):
    """The steps that commands are made of. Each command checks first, then ticks, then changes, then looks."""

    emitted: tuple[int | None, int | None] = (None, None)
    _passed: tuple[dict[str, object], ...] = ()

    def tick(self, now_ms: int) -> None:
        """Moves the job's clock, which never goes back."""
        gap_ms = now_ms - self.now_ms
        absent = self.absent_after_ms is not None and gap_ms > self.absent_after_ms
        # A job that waits for time is looked at now and then: a longer gap shows that nobody could.
        if absent and self.next_change_ms() is not None:
            self.unattended_ms += gap_ms
            self.journal.write(now_ms, "unattended", unattended_ms=gap_ms)
        self.now_ms = max(self.now_ms, now_ms)

    def _write(self, kind: str, **details: object) -> None:
        self.journal.write(self.now_ms, kind, **details)

    def _reply(self) -> Answer:
        """The answer to a command; an emission is recorded with it."""
        answer = self.answer()
        if (answer.coalesced_watermark, answer.watermark) != self.emitted:
            kind = Kind.COALESCED if answer.watermark == self.emitted[1] else Kind.EMISSION
            self.emitted = answer.coalesced_watermark, answer.watermark
            self.emissions += kind == Kind.EMISSION
            details: dict[str, object] = {
                "coalesced_watermark": answer.coalesced_watermark,
                "watermark": answer.watermark,
            }
            if answer.held_by is not None:
                held = answer.held_by
                details |= {"held_by": held.reason, "query": held.query, "substream": held.substream}
                details |= {"batch_id": held.batch_id, "hold": held.hold}
            self._write(kind, **details, limits=list(self._passed) or None)
        self._passed = ()
        return answer

    # -- what is seen ---------------------------------------------------------------------------------------------

    def _new_substream(self, query: str, name: str, policy: Policy | None = None) -> Substream:
        policy = policy or self.config.policy_of(name)
        made = Substream(policy, policy.start(self.numbers), self.observed(query), since_ms=self.now_ms)
        self.substreams[query, name] = made
        if name != PLACEHOLDER:
            self.substreams.pop((query, PLACEHOLDER), None)
        return made

    def _check_event_times(self, max_event_times: dict[str, int], watermarks: dict[str, int]) -> None:
        """:raises EventTimeMissing: where a substream's policy can make nothing of a watermark alone."""
        missing = [
            name
            for name in watermarks
            if name not in max_event_times and not isinstance(self.config.policy_of(name), Reported)
        ]
        if missing:
            raise EventTimeMissing(missing)

    def check_room(self, query: str, names: Iterable[str]) -> None:
        """What open batches have staged is to come with these; what stands for a missing query is no substream.

        :raises TooManySubstreams: where new ones among these make the job too large.
        """
        new = {(query, name) for name in names} - self.substreams.keys()
        if self.most_substreams is None or not new:
            return
        for name, other in self.queries.items():
            new |= {(name, staged) for staged in (*other.staged, *other.staged_watermarks)} - self.substreams.keys()
        if sum(name != PLACEHOLDER for _, name in self.substreams) + len(new) > self.most_substreams:
            raise TooManySubstreams(self.most_substreams)

    def _latest_event_time(self) -> int | None:
        """What lies beyond it is too far ahead of the clock to be true."""
        skew = self.config.max_future_skew_ms
        return None if skew is None else self.numbers.plus(self.now_ms, skew)

    def _set_aside_future(
        self, query: str, max_event_times: dict[str, int], watermarks: dict[str, int]
    ) -> tuple[dict[str, int], dict[str, int]]:
        """Takes out what is too far ahead of the clock to be true, all of a substream's report with it; counts it."""
        latest = self._latest_event_time()
        if latest is None:
            return max_event_times, watermarks
        names = dict.fromkeys([*max_event_times, *watermarks])
        future = [
            name for name in names if max(max_event_times.get(name, latest), watermarks.get(name, latest)) > latest
        ]
        if future:
            self._count_future(query, dict.fromkeys(future, 1))
            self._write("future", query=query, **named(member((query, name)) for name in future))
        kept = names.keys() - set(future)
        return (
            {name: time for name, time in max_event_times.items() if name in kept},
            {name: time for name, time in watermarks.items() if name in kept},
        )

    def _count_future(self, query: str, rows: dict[str, int]) -> None:
        for name, count in rows.items():
            self.future_total += count
            if (query, name) in self.substreams:  # there may be any number of others
                self.future[query, name] = self.future.get((query, name), 0) + count

    def _observe(self, query: str, max_event_times: dict[str, int], watermarks: dict[str, int]) -> bool:
        """Takes in highest event times and ready-made watermarks; returns whether that changed anything."""
        woken, applied = [], False
        for name in dict.fromkeys([*max_event_times, *watermarks]):
            takes_watermarks = isinstance(self.config.policy_of(name), Reported)
            if name not in max_event_times and not takes_watermarks:
                continue
            substream = self.substreams.get((query, name)) or self._new_substream(query, name)
            if substream.done:
                continue
            effective = name in max_event_times
            if effective:
                self._see(substream, max_event_times[name])
            if name in watermarks:
                effective = substream.report(watermarks[name]) or effective
            if effective:
                applied = True
                if substream.wake(self.observed(query)):
                    substream.since_ms = self.now_ms
                    woken.append(member((query, name)))
        if woken:
            self._write("active", query=query, **named(woken))
        return applied

    def _see(self, substream: Substream, event_time: int) -> None:
        substream.observe(event_time, self.moment)
        self.max_event_time = highest(self.max_event_time, event_time)

    def _measure(self, query: str, delays: Iterable[tuple[str, DelayedRows]], merged: int | None) -> None:
        """Takes in how far rows came behind their substreams' tops; lags that are learnt from that follow.

        A substream without a top has nothing that its rows could be behind. ``merged``: where the watermark would have
        been for these rows without a throttle.
        """
        measured: dict[str, Counter[int]] = {}
        for name, rows in delays:
            known = self.substreams.get((query, name))
            if known is not None and not known.done and known.max_event_time is not None:
                for bucket, count in rows:
                    measured.setdefault(name, Counter())[bucket] += count
        if not measured or self.max_event_time is None:
            return
        half_life, pooled, behind_all = self.config.delay_half_life_ms, Counter[int](), Counter[int]()
        passed: dict[str, int] = {}
        for name, counts in measured.items():
            substream = self.substreams[query, name]
            assert substream.max_event_time is not None
            sketch = self.delays.setdefault((query, name), Sketch())
            passed[name] = sketch.fade_to(substream.max_event_time, half_life)
            sketch.add(counts.items())
            pooled.update(counts)
            if substream.lag is not None:
                stands_at = None if substream.policy.follows_clock else substream.watermark
                if stands_at is None:
                    stands_at = substream.max_event_time - substream.lag
                ahead = None if merged is None else max(stands_at - merged, 0)
                for bucket, count in behind(counts.items(), ahead):
                    behind_all[bucket] += count
        for together, of_all in ((self.disorder.pool, pooled), (self.disorder.merged, behind_all)):
            together.fade_to(self.max_event_time, half_life)
            together.add(of_all.items())
        relearning = []
        for name, counts in measured.items():
            state, own = self.substreams[query, name].state_of_policy, self.delays[query, name]
            if isinstance(state, TargetState) and state.learn(counts, own, self.disorder.pool, passed[name]):
                relearning.append(member((query, name)))
        if relearning:
            self._write("relearning", query=query, **named(relearning))

    def _commit(self, name: str, query: QueryState) -> None:
        """What the open batch staged takes effect, with the policies' eyes on the present; a look must follow."""
        self._measure(name, [(of, rows) for (_, of), rows in query.staged_delays.items()], query.begun_merged)
        self._observe(name, query.staged, query.staged_watermarks)
        if query.taken_in_ms is not None:
            query.observe_until(query.taken_in_ms)
        for (_partition, substream), count in query.staged_counts.items():
            key = name, substream
            if key in self.substreams:
                self.reported[key] = self.reported.get(key, 0) + count
        for (_partition, substream), count in query.staged_future.items():
            self._count_future(name, {substream: count})
        query.open = False
        query.unstage()

    def _account(self, query: str, accounting: Accounting) -> None:
        diverts = accounting.late_disposition == "diverted"
        for name, counts in accounting.by_substream():
            key = query, name
            diverted = counts.late if diverts else 0
            self.total += counts
            self.diverted_total += diverted
            if key in self.substreams:
                self.counts[key] = self.counts.get(key, Counts()) + counts
                self.diverted[key] = self.diverted.get(key, 0) + diverted
        known = {name: (query, name) for name in accounting.substreams if (query, name) in self.substreams}
        rows = ((known.get(name), of_hour) for name, of_hour in accounting.by_hour())
        self.ledger.enter(rows, accounting.late_disposition, accounting.all_hours, self._latest_event_time())

    # -- the look -------------------------------------------------------------------------------------------------

    def _look(self, cap: int | None = None, tick: bool = False) -> None:
        """Decides who is idle, merges the rest, releases what no open batch holds back.

        ``cap``: what is reported just now must not be late by this very look. ``tick``: only time has passed.
        """
        if self.complete:
            return
        self._let_expire()
        self._time_out_queries()
        self._fall_idle()
        live = [(key, substream) for key, substream in self.substreams.items() if substream.live]
        for _, substream in live:
            substream.look(self.moment, cap)
        self._lost_at_look = self.unattended_ms
        self._look_due = cap is not None and any(s.policy.follows_clock and above(s.reading, cap) for _, s in live)
        before, was_all_idle = self.coalescer.coalesced_watermark, self.coalescer.all_idle
        hold, at = self._hold(), self.moment
        retained = self.coalescer.look(
            [substream.watermark for _, substream in live],
            self.config.throttle,
            None if hold is None else hold.at_most,
            at.now_ms,
            at.observed_ms,
            tick,
        )
        if above(self.coalescer.coalesced_watermark, before):
            self._record_limits(live, retained)
        if self.coalescer.all_idle != was_all_idle:
            if was_all_idle:
                self._write("not_all_idle")
            elif not self.substreams or any(not substream.done for substream in self.substreams.values()):
                self._write("all_idle")
        self.coalescer.release(self._open_pin(), self.now_ms)
        self._count_wait(before)

    def _count_wait(self, before: int | None) -> None:
        """The watermark is where it is, and was at ``before``: what came out in between had to wait for that."""
        watermark, throttle = self.coalescer.coalesced_watermark, self.config.throttle
        if before is None or watermark is None or watermark <= before or self.max_event_time is None:
            return
        lowest = self._lowest()
        lag = None if lowest is None else lowest[1].lag
        if lag is not None:
            slide = throttle.frame.slide if isinstance(throttle, FrameThrottle) else 0
            self.disorder.passed(before, watermark, slide, self.max_event_time, lag, self.config.delay_half_life_ms)

    def _acts(self, limit: str) -> None:
        self.limits[limit] = self.limits.get(limit, 0) + 1

    def _record_limits(self, live: list[tuple[SubstreamKey, Substream]], retained: bool) -> None:
        """The limits that let C pass live substreams, for the record of the emission."""
        passed: list[tuple[str, list[tuple[int | None, str]]]] = []
        if retained:
            passed.append(("max_retention_ms", [(s.reading, member(key)) for key, s in live]))
        for limit in POLICY_LIMITS:
            under = [(s.state_of_policy.lagged, member(key)) for key, s in live if s.policy.limit == limit]
            passed.append((limit, under))
        for limit, readings in passed:
            behind = [item for item in readings if above(self.coalescer.coalesced_watermark, item[0])]
            behind.sort(key=lambda item: (by_value(item[0]), item[1].encode()))
            if behind:
                self._acts(limit)
                self._passed += ({"limit": limit, **named(name for _, name in behind)},)

    def _fall_idle(self) -> None:
        if self.config.idle_timeout_ms is None:
            return
        for query in (DIRECT, *self.queries):
            due = [
                (s.last_event_ms, member(key).encode(), s)
                for key, s in self.substreams.items()
                if key[0] == query and s.live and self._is_silent(query, s)
            ]
            self._set_idle("idle_timeout_ms", query, due)

    def _is_silent(self, query: str, substream: Substream) -> bool:
        """Whether the clock of its query says that nothing of it came for the idle timeout."""
        timeout = self.config.idle_timeout_ms
        clock: int | None = self.moment.observed_ms
        if query != DIRECT:
            clock = self.queries[query].idle_clock_ms if query in self.queries else None
        return timeout is not None and clock is not None and clock - substream.last_event_ms >= timeout

    def _time_out_queries(self) -> None:
        timeout = self.config.query_timeout_ms
        if timeout is None:
            return
        for query, contact_ms in list(self.contacts.items()):
            if self.moment.observed_ms - contact_ms >= timeout:
                del self.contacts[query]
                live = [
                    (s.last_event_ms, member(key).encode(), s)
                    for key, s in self.substreams.items()
                    if key[0] == query and s.live
                ]
                self._set_idle("query_timeout_ms", query, live)
                for _, _, substream in live:
                    substream.told = True

    def _set_idle(self, limit: str, query: str, due: list[tuple[int, bytes, Substream]]) -> None:
        if not due:
            return
        due.sort(key=lambda item: item[:2])
        for _, _, substream in due:
            substream.idle, substream.since_ms = True, self.now_ms
        self._acts(limit)
        self._write("idle", limit=limit, query=query, **named(name.decode() for _, name, _ in due))

    def _let_expire(self) -> None:
        """Ends the holds whose time has come, and the hold that a batch too long open has on the watermark."""
        for hold in [h for h in self.holds.values() if not h.stands(self.now_ms)]:
            del self.holds[hold.hold]
            self._write("hold_expired", hold=hold.hold)
        limit = self.config.max_batch_hold_ms
        if limit is None:
            return
        for name, query in self.queries.items():
            since_ms = query.begun_observed_ms
            if query.open and not query.released and self.moment.observed_ms - since_ms >= limit:
                query.released = True
                self._acts("max_batch_hold_ms")
                self._write("batch_released", query=name, batch_id=query.latest)

    def _end(self, up_to: int | None = None) -> None:
        """Move C past the throttle to the end of the last frame that anything was seen in, or that begins before
        ``up_to``.
        """
        last = highest(self.max_event_time, None if up_to is None else max(up_to - 1, self.numbers.lowest))
        if last is not None:
            self.coalescer.advance(self.config.end_after(last, self.numbers), self.now_ms)
        self.coalescer.release(None, self.now_ms)
