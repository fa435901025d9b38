"""One job in the domain and in the Lua functions. Replies, records and tables are compared."""

import itertools
import json
from collections.abc import Callable, Coroutine
from dataclasses import replace
from operator import itemgetter
from typing import Any

from tests.support.driver import Driver, records
from tests.support.machine import JobMachine
from tests.support.store import JobStore
from tidegate.domain.completeness import NO_ROWS, Sketch
from tidegate.domain.config import JobConfig
from tidegate.domain.errors import DomainError
from tidegate.domain.history import SAMPLES_KEPT, Kind, Record
from tidegate.domain.job import ConfigVersion
from tidegate.domain.results import JobWatermark
from tidegate.domain.values import EXACT_DOUBLE
from tidegate.store.jobs import Capacity
from tidegate.store.keyspace import job_key

serial = itertools.count()

NEXT_CHANGE = """
local change = cmsgpack.unpack(redis.call('HGET', KEYS[1], 'scalars')).next_change
return change and string.format('%.0f', change)
"""

WRITTEN = "written_watermark"
FRAMES = 12
"""Number of frames that are compared."""

Outcome = tuple[Any, DomainError | None]


def outcome(command: Callable[[], Any]) -> Outcome:
    """Return the result of a command and the error with which it was refused; one of the two is None."""
    try:
        return command(), None
    except DomainError as refused:
        return None, refused


def comparable(records: list[Record]) -> list[str]:
    """Return the records of one command in a comparable form.

    The comparison ignores the order of records of one moment, and of names in a record.
    """

    def flat(value: Any) -> Any:
        if isinstance(value, list):
            return sorted((flat(item) for item in value), key=lambda item: json.dumps(item, sort_keys=True))
        if isinstance(value, dict):
            return {key: flat(item) for key, item in value.items()}
        return value

    return sorted(json.dumps([r.kind, r.at_ms, flat(r.details)], sort_keys=True) for r in records)


def without_written(result: Any) -> Any:
    """Return the result of a command without the written watermark."""
    if isinstance(result, JobWatermark):
        return replace(result, written_watermark=None, written_held_by=None)
    return replace(result, state=without_written(result.state)) if hasattr(result, "state") else result


def _patterns(config: JobConfig) -> dict[str, Any]:
    """Return the part of the stored JSON from which the rows of substreams get their policies."""
    return {"overrides": [{"substreams": override.pattern} for override in config.overrides]}


class Twin:
    """A job in the domain and in the Lua functions.

    ``now`` is the time at which commands are executed. It may stand still or go back. ``answers`` are the states that
    commands have returned, and ``new_records`` the records of the last command. ``shows_offsets`` tells whether the
    version that serves the job shows offsets, and ``knows_consumers`` whether it knows consumers. ``compares_written``
    tells whether all versions know written watermarks, ``compares_frames`` whether all versions know frames, and
    ``compares_skew`` whether all versions measure skew from the median.
    """

    compares_written = True
    compares_frames = True
    compares_skew = True
    shows_offsets: Callable[[], bool] = staticmethod(lambda: True)
    knows_consumers: Callable[[], bool] = staticmethod(lambda: True)

    def __init__(
        self,
        driver: Driver,
        config: JobConfig,
        now_ms: int,
        unattended_after_ms: int | None,
        max_substreams: int | None = None,
    ) -> None:
        self.driver = driver
        self.store = JobStore(driver.store.redis, unattended_after_ms, capacity=Capacity(substreams=max_substreams))
        self.job = f"twin-{next(serial)}"
        self.now = now_ms
        stored = driver(self.store.configure(self.job, config, _patterns(config), None, now_ms=now_ms))
        self.machine = JobMachine(
            config,
            now_ms,
            incarnation=stored.state.incarnation,
            state_epoch=stored.state.state_epoch,
            unattended_after_ms=unattended_after_ms,
            max_substreams=max_substreams,
        )
        self.revision = 1
        self.answers = [stored.state]
        self.seen, self.written = "-", 0
        self.new_records: list[Record] = []
        self._same(stored.state, self.machine.watermark_state())
        self.compare_records()

    def both(self, domain: Callable[[], Any], store: Coroutine[Any, Any, Any]) -> Any:
        """Execute a command on both sides and return its reply; None if both refused it for the same reason."""
        expected, refused = outcome(domain)
        got, also_refused = outcome(lambda: self.driver(store))
        self._same((type(also_refused), str(also_refused)), (type(refused), str(refused)))
        self._same(got, expected)
        self.compare_records()
        if refused is not None:
            assert not self.new_records
            return None
        answer = getattr(got, "state", got)
        assert isinstance(answer, JobWatermark)
        self.answers.append(answer)
        return got

    def change(self, config: JobConfig, version: ConfigVersion | None = None) -> bool:
        """Change the configuration of the job; return whether it had the version (None: the current one)."""
        version = version or ConfigVersion(self.machine.state_epoch, self.revision)

        async def put() -> JobWatermark:
            stored = await self.store.configure(self.job, config, _patterns(config), version, now_ms=self.now)
            assert stored.revision == self.machine.revision
            return stored.state

        changed = self.both(lambda: self.machine.configure(config, self.now, version=version), put()) is not None
        self.revision += changed
        return changed

    def compare_records(self) -> None:
        """Compare the records that both sides have written since the last command."""
        history = self.machine.history
        expected = list(history)[len(history) - (history.written - self.written) :]
        entries = self.driver(records(self.store, self.job, after=self.seen))
        self.written, self.seen = history.written, entries[-1][0] if entries else self.seen
        self.new_records = expected
        self._same(comparable(self._known([record for _, record in entries])), comparable(self._known(expected)))

    def _known(self, found: list[Record]) -> list[Record]:
        """Return the parts of records that all versions write."""
        if self.compares_written:
            return found
        return [
            replace(record, details={name: value for name, value in record.details.items() if name != WRITTEN})
            for record in found
            if record.kind != Kind.WRITTEN
        ]

    def _same(self, lua: object, domain: object) -> None:
        if not self.compares_written:
            lua, domain = without_written(lua), without_written(domain)
        if lua == domain:
            return
        if isinstance(lua, list) and isinstance(domain, list):  # show only the differences
            lua, domain = (
                [item for item in lua if item not in domain],
                [item for item in domain if item not in lua],
            )
        raise AssertionError(f"the Lua functions returned {lua}, and the domain {domain}")

    def compare_tables(self) -> tuple[Any, ...]:
        """Compare all tables of the job on both sides; return the rows of substreams and queries, and the summary."""
        table = self.driver(self.store.reads.substreams(self.job, now_ms=self.now))
        rows, expected_rows = table.rows, self.machine.substream_table(self.now)
        if not self.compares_skew:
            rows, expected_rows = ([replace(row, skew=None) for row in each] for each in (rows, expected_rows))
        self._same(rows, expected_rows)
        queries = self.driver(self.store.reads.queries(self.job, self.now)).rows
        status = self.driver(self.store.reads.status(self.job, self.now))
        expected, summary = self.machine.query_table(), self.machine.summary()
        if not self.shows_offsets():
            expected = [replace(row, offsets=None) for row in expected]
            summary = replace(summary, unread_offsets={}, skipped_offsets={})
        if not self.compares_frames:
            summary = replace(summary, frames=None)
            status = replace(status, summary=replace(status.summary, frames=None))
        self._same(queries, expected)
        self._same(status.summary, summary)
        _, known = self.driver(self.store.reads.delays(self.job, [*self.machine.substreams], self.now))
        of_each = self.machine.delays
        self._same(known.statistics, self.machine.delay_statistics)
        for key, (lag, sketch) in known.substreams.items():
            substream = self.machine.substreams[key]
            ended = substream.done or self.machine.is_complete
            self._same((lag, sketch), (None if ended else substream.policy_state.lag, of_each.get(key, Sketch())))
        ledger, late = self.machine.ledger, self.driver(self.store.reads.late(self.job, now_ms=self.now))
        self._same((late.diverted, late.hours), (self.machine.diverted_total, ledger.of_job))
        self._same((late.counts, late.unattributed), (self.machine.total, dict(ledger.unattributed)))
        not_on_time = [entry for entry in ledger.entries() if entry[2].late or entry[2].updated]
        self._same(*(sorted(entries, key=itemgetter(0, 1)) for entries in (late.entries, not_on_time)))
        for key in [*self.machine.substreams][:1]:
            of_one = self.driver(self.store.reads.late(self.job, key, self.now))
            of_hours = {hour: of_each[key] for hour, of_each in ledger.of_substreams.items() if key in of_each}
            self._same((of_one.diverted, of_one.hours), (self.machine.diverted_rows.get(key, 0), of_hours))
            self._same(of_one.counts, self.machine.row_counts.get(key, NO_ROWS))
        self.compare_frames()
        self.compare_consumers()
        self._same(self._due(self.driver(self._next_change_ms())), self._due(self.machine.next_change_ms()))
        for interval_ms, kept in SAMPLES_KEPT.items():
            timeline = self.driver(self.store.reads.samples(self.job, interval_ms, kept, self.now))
            self._same(timeline.samples, self.machine.timeline.samples(interval_ms))
        return table.rows, queries, status.summary

    def compare_frames(self) -> None:
        """Compare the latest frames, their records and generations, and the numbers of finished frames."""
        if not self.compares_frames:
            return
        found = self.driver(self.store.reads.frames(self.job, most=FRAMES, now_ms=self.now))
        self._same([replace(frame, record_id=None) for frame in found.frames], self.machine.frames_between(FRAMES))
        totals = {state: count for state, count in found.totals.items() if count}
        self._same(totals, {state: count for state, count in self.machine.frames.totals.items() if count})
        learned = self.driver(self.store.reads.learned(self.job, self.now))
        self._same(learned.completions, self.machine.frames.completions)

    def compare_consumers(self) -> None:
        """Compare the leases and positions of the consumers of the frames."""
        if not self.knows_consumers():
            return
        found = self.driver(self.store.reads.consumers(self.job, self.now)).consumers
        self._same(found, [self.machine.consumers[name] for name in sorted(self.machine.consumers)])

    async def _next_change_ms(self) -> int | None:
        found: Any = await self.store.redis.eval(NEXT_CHANGE, 1, job_key(self.job))
        return int(found) if found else None

    def _due(self, next_change_ms: int | None) -> int | None:
        """Return the time of the next change, limited to numbers that the store holds exactly.

        For a change that is already due, return the next millisecond.
        """
        if next_change_ms is None:
            return None
        return min(max(next_change_ms, self.machine.moment.observed_ms + 1), EXACT_DOUBLE.highest)

    def close(self) -> None:
        self.driver.close()
