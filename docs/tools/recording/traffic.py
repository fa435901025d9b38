"""Rows with random delays, committed in batches at processing times of the last hours.

Each batch goes through the functions of the store. As in the client, a row is late if its event time is below the
pinned watermark of its batch.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tests.support.scenes import HOUR, MINUTE
from tests.support.store import JobStore
from tidegate.domain.batches import PartitionReport
from tidegate.domain.completeness import BatchAccounting, RowCounts, bucket_of
from tidegate.domain.config import JobConfig
from tidegate.domain.history import AuditInfo
from tidegate.domain.job import Run
from tidegate.domain.policies import LimitingLag

BATCH_MS = 2 * MINUTE
SLOWEST_FOR_MS = 3 * HOUR
TAKES_MS = 4000
"""Time between the begin and the commit of a batch."""

EventTimes = Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class Silence:
    """A time in which a substream sends nothing. Its rows arrive in the first batch afterwards.

    Attributes:
        substream: The substream.
        begin_ms: Begin of the silence, as a duration before the present.
        end_ms: End of the silence, as a duration before the present.
    """

    substream: str
    begin_ms: int
    end_ms: int = -HOUR


@dataclass(frozen=True)
class Hold:
    """A hold at the watermark of its begin.

    Attributes:
        name: Name of the hold.
        reason: Reason that the operator gave.
        begin_ms: Begin of the hold, as a duration before the present. It must be a multiple of ``BATCH_MS``.
        end_ms: Release of the hold, as a duration before the present; None if it is still in force.
        duration_ms: Time after which the hold ends without a release; None if it does not.
    """

    name: str
    reason: str
    begin_ms: int
    end_ms: int | None = None
    duration_ms: int | None = None


@dataclass(frozen=True)
class Traffic:
    """The rows and the batches of one query, which is the only query of its job.

    Attributes:
        job: Name of the job.
        query: Name of the query.
        substreams: Names of the substreams.
        lag_ms: Lag of the policy.
        idle_timeout_ms: Idle timeout; None turns it off.
        begin_ms: Begin of the first batch, as a duration before the present.
        end_ms: End of the last batch, as a duration before the present.
        rows: Average number of rows of a substream in a batch.
        delay_ms: Average delay of a row. Every three hours, another substream becomes slower by twice this delay.
        silences: Times in which a substream sends nothing.
        holds: Holds of an operator.
    """

    job: str
    query: str
    substreams: Sequence[str]
    lag_ms: int
    idle_timeout_ms: int | None = None
    begin_ms: int = 4 * HOUR
    end_ms: int = 0
    rows: int = 4
    delay_ms: int = 2 * MINUTE
    silences: Sequence[Silence] = ()
    holds: Sequence[Hold] = ()

    async def fill(self, store: JobStore, now_ms: int) -> None:
        """Create the job, and commit all batches."""
        document = {
            "policy": {"type": "limiting_lag", "lag_ms": self.lag_ms},
            "idle_timeout_ms": self.idle_timeout_ms,
        }
        config = JobConfig(LimitingLag(self.lag_ms), idle_timeout_ms=self.idle_timeout_ms)
        await store.configure(self.job, config, document, None, now_ms=now_ms - self.begin_ms - BATCH_MS)
        commits = Commits(store, self.job, Run(self.query, "checkpoint", "run-1"))
        for at_ms, event_times in self._batches(now_ms):
            watermark = await commits.add(at_ms, event_times)
            await self._hold(store, at_ms, now_ms - at_ms, watermark)

    def _batches(self, now_ms: int) -> Iterator[tuple[int, EventTimes]]:
        """Yield the processing time and the event times of each batch, by substream."""
        generator = random.Random(self.job)  # noqa: S311 - the same rows each time
        waiting: dict[str, list[int]] = defaultdict(list)
        for ago_ms in range(self.begin_ms, self.end_ms - 1, -BATCH_MS):
            arrived: dict[str, list[int]] = {}
            slowest = self.substreams[ago_ms // SLOWEST_FOR_MS * 5 % len(self.substreams)]
            for name in self.substreams:
                for _ in range(generator.randint(self.rows // 2, self.rows + self.rows // 2)):
                    delay_ms = self.delay_ms * (generator.expovariate(1) + 2 * (name == slowest))
                    delay_ms = min(delay_ms, self.lag_ms) + generator.uniform(0, BATCH_MS)
                    waiting[name].append(now_ms - ago_ms - int(delay_ms))
                if not self._is_silent(name, ago_ms):
                    arrived[name] = waiting.pop(name, [])
            yield now_ms - ago_ms, {name: times for name, times in arrived.items() if times}

    def _is_silent(self, name: str, ago_ms: int) -> bool:
        return any(one.substream == name and one.end_ms < ago_ms <= one.begin_ms for one in self.silences)

    async def _hold(self, store: JobStore, at_ms: int, ago_ms: int, watermark: int | None) -> None:
        """Begin or release the holds whose time this is."""
        for hold in self.holds:
            audit = AuditInfo("dana", hold.reason)
            if hold.begin_ms == ago_ms and watermark is not None:
                await store.actions.hold(self.job, hold.name, watermark, hold.duration_ms, audit, now_ms=at_ms)
            elif hold.end_ms == ago_ms:
                await store.actions.release(self.job, hold.name, audit, now_ms=at_ms)


@dataclass
class Commits:
    """The batches of a query, which classifies rows and measures delays as the client does."""

    store: JobStore
    job: str
    run: Run
    _number: int = 0
    _max_event_times: dict[str, int] = field(default_factory=dict)

    async def add(self, at_ms: int, event_times: EventTimes) -> int | None:
        """Begin, stage and commit a batch with these event times, by substream; return the watermark after it."""
        number, self._number = self._number, self._number + 1
        begun = await self.store.begin(self.job, self.run, number, now_ms=at_ms - TAKES_MS)
        report = PartitionReport(
            0,
            {name: max(times) for name, times in event_times.items()},
            rows={name: len(times) for name, times in event_times.items()},
            delays={
                name: tuple(Counter(bucket_of(self._max_event_times[name] - time) for time in times).items())
                for name, times in event_times.items()
                if name in self._max_event_times
            },
        )
        await self.store.stage(self.job, self.run, number, report, now_ms=at_ms)
        committed = await self.store.commit(
            self.job, self.run, number, accounting(event_times, begun.pinned_watermark), now_ms=at_ms
        )
        for name, time in report.max_event_times.items():
            self._max_event_times[name] = max(time, self._max_event_times.get(name, time))
        return committed.state.watermark


def accounting(event_times: EventTimes, pinned_watermark: int | None) -> BatchAccounting:
    """Return the rows of a batch by class, substream and hour. Late rows are diverted."""
    counts, hours = [], []
    for times in event_times.values():
        late = [time for time in times if pinned_watermark is not None and time < pinned_watermark]
        counts.append(RowCounts(on_time=len(times) - len(late), late=len(late)))
        all_of, late_of = (Counter(time // HOUR for time in some) for some in (times, late))
        hours.append(tuple((hour, rows, 0, late_of[hour]) for hour, rows in all_of.items()))
    return BatchAccounting(tuple(event_times), tuple(counts), "diverted", tuple(hours))
