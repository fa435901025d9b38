"""The state of one job, and the transition that every command ends in: who is idle, what the rest comes to."""

from tidegate.domain.coalescer import Coalescer, OpenPin
from tidegate.domain.config import JobConfig
from tidegate.domain.numbers import above
from tidegate.domain.query import QueryState
from tidegate.domain.records import Accounting, Answer, Counts, Holder, HolderReason, QueryRow, SubstreamRow
from tidegate.domain.substream import Substream, SubstreamKey

DIRECT = ""
"""The query name under which reports without batches are kept."""


class JobState:
    """What is known of one job. Reading it changes nothing; its transitions belong to the commands of the machine."""

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
            lost_ms = self.queries[query].lost_ms if query in self.queries else 0
            state = s.state(self._observed(query, now_ms), timeout)
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

    def _observed(self, query: str, now_ms: int) -> int:
        """A moment in the observed time of a query; reports without batches have none of their own."""
        return self.queries[query].observed(now_ms) if query in self.queries else now_ms

    def _observe(self, query: str, tops: dict[str, int]) -> None:
        for name, top in tops.items():
            observed_ms = self._observed(query, self.now_ms)
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
        live = [(key, s) for key, s in self.substreams.items() if s.live]
        if pin is not None and (not live or above(self.coalescer.coalesced, pin.value)):
            batch_id = self.queries[pin.query].latest
            return Holder("open_batch", pin.query, None, batch_id, self.coalescer.watermark_since_ms)
        if self.complete or not live:
            return None
        (query, name), lowest = min(
            live, key=lambda item: (item[1].watermark is not None, item[1].watermark or 0, "/".join(item[0]).encode())
        )
        reason: HolderReason = "never_reported" if lowest.top is None else "slow"
        if lowest.state(self._observed(query, self.now_ms), self.config.idle_timeout_ms) == "blocked":
            reason = "blocked"
        return Holder(reason, query, name, None, self.coalescer.coalesced_since_ms)
