"""The commands of operators on substreams and queries: what is known of the input, and ways out of trouble.

Repeating one changes nothing, and says so. Each that changes something is recorded, with who did it and why.
"""

from collections.abc import Mapping, Sequence

from tidegate.domain.errors import (
    JobComplete,
    QueryNotFound,
    SubstreamDone,
    SubstreamNotFound,
)
from tidegate.domain.journal import UNEXPLAINED, Why, named
from tidegate.domain.numbers import above, by_value
from tidegate.domain.query import QueryState
from tidegate.domain.records import Counts, Effect
from tidegate.domain.substream import PLACEHOLDER, SubstreamKey, member
from tidegate.domain.transition import Transition


class Acting(Transition):
    """What is done to parts of a job from outside the stream."""

    def _act(self, action: str, why: Why, query: str = "", names: Sequence[str] = (), **details: object) -> None:
        if names:
            details |= named(member((query, name)) for name in names)
        self._write("action", action=action, query=query, actor=why.actor, reason=why.reason, **details)

    # -- substreams -----------------------------------------------------------------------------------------------

    def declare(
        self,
        query: str,
        names: Sequence[str],
        now_ms: int,
        max_event_times: Mapping[str, int] | None = None,
        why: Why = UNEXPLAINED,
    ) -> Effect:
        """Makes substreams known before their first event, so that they hold the watermark back from the start.

        ``max_event_times``: their highest event times, where a client knows them and the store has lost the job: the
        substream
        goes on from there. For one that has shown event times already they are of no effect, and so are those too far
        ahead of the clock to be true. Nothing moves until the next look.

        :raises JobComplete: for a new one, after the end of input.
        :raises TooManySubstreams: where there is no room for all of them; then none is declared.
        """
        new = [name for name in names if (query, name) not in self.substreams]
        if new and self.complete:
            raise JobComplete()
        self.check_room(query, new)
        self.tick(now_ms)
        max_event_times = {} if max_event_times is None or self.complete else max_event_times
        unseen = {
            name: max_event_times[name] for name in names if name in max_event_times and self._is_unseen(query, name)
        }
        for name in new:
            self._new_substream(query, name)
        seen, _ = self._set_aside_future(query, unseen, {})
        if seen:
            self._observe(query, seen, {})
            self._look_due = True
        affected = [name for name in names if name in new or name in seen]
        if affected:
            self._act("declare", why, query, affected)
        return Effect(self._reply(), bool(affected))

    def _is_unseen(self, query: str, name: str) -> bool:
        """Whether nothing is known of where a substream is; it may be unknown altogether."""
        known = self.substreams.get((query, name))
        return known is None or (known.max_event_time is None and not known.done)

    def restore(self, query: str, watermarks: Mapping[str, int], now_ms: int, why: Why = UNEXPLAINED) -> Effect:
        """Takes over watermarks from elsewhere, for substreams that are known: at start-up, before their events.

        A substream's watermark becomes the one given, unless it is further already. If the lowest of all substreams is
        then ahead of C, C moves there, past the throttle.

        :raises JobComplete: after the end of input.
        :raises SubstreamNotFound: for one that is not known; then none is restored.
        """
        if self.complete:
            raise JobComplete()
        self._check_known(query, watermarks)
        self.tick(now_ms)
        new = [name for name, w in watermarks.items() if above(w, self.substreams[query, name].watermark)]
        for name in new:
            self.substreams[query, name].watermark = watermarks[name]
        if new:
            self._act("restore", why, query, new)
            self._look_due = True
            lowest = min((s.watermark for s in self.substreams.values()), key=by_value)
            hold = self._hold()
            if hold is not None and lowest is not None:
                lowest = min(lowest, hold.at_most)
            self.coalescer.advance(lowest, self.now_ms)
            self.coalescer.release(self._open_pin(), self.now_ms)
        return Effect(self._reply(), bool(new))

    def idle(self, query: str, names: Sequence[str], now_ms: int, why: Why = UNEXPLAINED) -> Effect:
        """Declares substreams idle: the rest no longer waits for them, until something comes of them.

        :raises SubstreamNotFound, SubstreamDone: for any of them; then none is.
        """
        self._check_known(query, names)
        done = [name for name in names if self.substreams[query, name].done]
        if done:
            raise SubstreamDone(query, done)
        self.tick(now_ms)
        new = [name for name in names if not self.substreams[query, name].idle]
        for name in names:
            substream = self.substreams[query, name]
            substream.idle = substream.told = True
            if name in new:
                substream.since_ms = self.now_ms
        return self._acted("idle", why, query, new)

    def done(self, query: str, names: Sequence[str], now_ms: int, why: Why = UNEXPLAINED) -> Effect:
        """Marks substreams as ended: they never hold the watermark again, and what they led to goes on counting.

        :raises SubstreamNotFound: for one that is not known; then none is marked.
        """
        self._check_known(query, names)
        self.tick(now_ms)
        new = [name for name in names if not self.substreams[query, name].done]
        for name in new:
            substream = self.substreams[query, name]
            substream.done, substream.since_ms = True, self.now_ms
        return self._acted("done", why, query, new)

    def evict(self, query: str, names: Sequence[str], now_ms: int, why: Why = UNEXPLAINED) -> Effect:
        """Forgets substreams, as if they had never been; what they led to goes on counting. They may come back as new.

        One that is not known is passed over, for an eviction may be repeated.
        """
        self.tick(now_ms)
        new = [name for name in names if (query, name) in self.substreams]
        self._forget([(query, name) for name in new])
        return self._acted("evict", why, query, new)

    def _acted(self, action: str, why: Why, query: str, names: Sequence[str]) -> Effect:
        """What was done to these substreams shows; where there are none, it had been done before."""
        if names:
            self._act(action, why, query, names)
        self._look()
        return Effect(self._reply(), bool(names))

    def _check_known(self, query: str, names: Sequence[str] | Mapping[str, int]) -> None:
        unknown = [name for name in names if (query, name) not in self.substreams]
        if unknown:
            raise SubstreamNotFound(query, unknown)

    def _forget(self, keys: Sequence[SubstreamKey]) -> None:
        for key in keys:
            del self.substreams[key]
            for table in (self.counts, self.reported, self.future, self.diverted, self.delays):
                table.pop(key, None)

    # -- queries --------------------------------------------------------------------------------------------------

    def retire(self, query: str, successor: str | None, now_ms: int, why: Why = UNEXPLAINED) -> Effect:
        """Ends a query. What its open batch staged is dropped, and the batch holds the watermark no longer.

        Without a ``successor`` its substreams are evicted. With one they are that query's from now on, as they are,
        except those that it has itself; their silence begins to count anew, for it has not read that input before. A
        query may be its own successor: it keeps its substreams, gives up its open batch, and may then begin on another
        checkpoint. In each case the run that was current may not go on.

        :raises QueryNotFound: for a query nobody has heard of.
        """
        known = self.queries.get(query)
        mine = [key for key in self.substreams if key[0] == query]
        if known is None and not mine:
            raise QueryNotFound(query)
        self.tick(now_ms)
        if known is not None and known.retired and not mine:
            return Effect(self._reply(), False)
        names = [name for _, name in mine if name != PLACEHOLDER]
        if successor == query:
            return self._give_up_batch(query, known, why)
        if known is None:  # it was expected, or declared for; it stays retired if it never comes
            known = self.queries[query] = QueryState("", "", self.now_ms)
        known.give_up()
        self.contacts.pop(query, None)
        if successor is not None:
            self._hand_over(query, successor)
        self._forget([key for key in mine if key in self.substreams])
        self._act("retire", why, query, names, successor=successor)
        self._look()
        return Effect(self._reply(), True)

    def _give_up_batch(self, query: str, known: QueryState | None, why: Why) -> Effect:
        applied = known is not None and known.open
        if known is not None and applied:
            known.give_up()
            self._act("retire", why, query, successor=query)
        self._look()
        return Effect(self._reply(), applied)

    def _hand_over(self, query: str, successor: str) -> None:
        for key in [key for key in self.substreams if key[0] == query and key[1] != PLACEHOLDER]:
            to = successor, key[1]
            if to in self.substreams:
                continue
            substream = self.substreams.pop(key)
            substream.last_event_ms = self.observed(successor)
            self.substreams[to] = substream
            self.substreams.pop((successor, PLACEHOLDER), None)
            self.counts[to] = self.counts.get(to, Counts()) + self.counts.pop(key, Counts())
            for table in (self.reported, self.future, self.diverted):
                table[to] = table.get(to, 0) + table.pop(key, 0)
            if key in self.delays:
                self.delays[to] = self.delays.pop(key)
