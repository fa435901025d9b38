"""One job on both sides: each command goes to the domain and to the scripts, and all they say is compared."""

import itertools
import json
from collections.abc import Callable, Coroutine
from operator import itemgetter
from typing import Any

from tests.support.driver import Driver
from tests.support.machine import JobMachine
from tidegate.domain.config import JobConfig
from tidegate.domain.errors import DomainError
from tidegate.domain.journal import Record
from tidegate.domain.numbers import EXACT_DOUBLE
from tidegate.domain.results import WatermarkState
from tidegate.domain.rows import RowCounts
from tidegate.domain.sketch import Sketch
from tidegate.store.jobs import JobStore, Limits
from tidegate.store.keys import job_key

serial = itertools.count()

Outcome = tuple[Any, DomainError | None]


def outcome(command: Callable[[], Any]) -> Outcome:
    """What a command gave, or why it was refused."""
    try:
        return command(), None
    except DomainError as refused:
        return None, refused


def comparable(records: list[Record]) -> list[str]:
    """Records of one command. What it did at one moment has no order, and neither have the names in it."""

    def flat(value: Any) -> Any:
        if isinstance(value, list):
            return sorted((flat(item) for item in value), key=lambda item: json.dumps(item, sort_keys=True))
        if isinstance(value, dict):
            return {key: flat(item) for key, item in value.items()}
        return value

    return sorted(json.dumps([r.kind, r.at_ms, flat(r.details)], sort_keys=True) for r in records)


class Twin:
    """``now`` is the time at which commands are given; it may stand still or go back."""

    def __init__(
        self,
        driver: Driver,
        config: JobConfig,
        now_ms: int,
        unattended_after_ms: int | None,
        max_substreams: int | None = None,
    ) -> None:
        self.driver = driver
        self.store = JobStore(driver.store.redis, unattended_after_ms, limits=Limits(substreams=max_substreams))
        self.job = f"twin-{next(serial)}"
        self.now = now_ms
        stored = driver(self.store.configure(self.job, config, {}, None, now_ms=now_ms))
        self.machine = JobMachine(
            config,
            now_ms,
            state_epoch=stored.state.state_epoch,
            unattended_after_ms=unattended_after_ms,
            max_substreams=max_substreams,
        )
        self.revision = 1
        self.told = [stored.state]
        self.seen, self.written = "-", 0
        self.fresh: list[Record] = []
        assert stored.state == self.machine.watermark_state()
        self.compare_records()

    def both(self, domain: Callable[[], Any], store: Coroutine[Any, Any, Any]) -> Any:
        """The reply that both sides gave; None where both refused, for the same reason, and nothing changed."""
        expected, refused = outcome(domain)
        got, also_refused = outcome(lambda: self.driver(store))
        self._same((type(also_refused), str(also_refused)), (type(refused), str(refused)))
        self._same(got, expected)
        self.compare_records()
        if refused is not None:
            assert not self.fresh
            return None
        answer = getattr(got, "state", got)
        assert isinstance(answer, WatermarkState)
        self.told.append(answer)
        return got

    def change(self, config: JobConfig) -> None:
        """Other rules for the job."""
        self.revision += 1

        async def put() -> WatermarkState:
            stored = await self.store.configure(self.job, config, {}, self.revision - 1, now_ms=self.now)
            return stored.state

        self.both(lambda: self.machine.configure(config, self.now), put())

    def compare_records(self) -> None:
        """What both have written since the last command: the same."""
        journal = self.machine.journal
        expected = list(journal)[len(journal) - (journal.written - self.written) :]
        entries = self.driver(self.store.reads.records(self.job, after=self.seen))
        self.written, self.seen = journal.written, entries[-1][0] if entries else self.seen
        self.fresh = expected
        self._same(comparable([record for _, record in entries]), comparable(expected))

    @staticmethod
    def _same(scripts: object, domain: object) -> None:
        if scripts == domain:
            return
        if isinstance(scripts, list) and isinstance(domain, list):  # what both have is not worth showing
            scripts, domain = (
                [item for item in scripts if item not in domain],
                [item for item in domain if item not in scripts],
            )
        raise AssertionError(f"the scripts have {scripts}, the domain {domain}")

    def compare_tables(self) -> tuple[Any, ...]:
        """Everything that can be read of the job: the same on both sides. Returns it."""
        table = self.driver(self.store.reads.substreams(self.job, now_ms=self.now))
        self._same(table.rows, self.machine.substream_table(self.now))
        _, queries = self.driver(self.store.reads.queries(self.job, self.now))
        self._same(queries, self.machine.query_table())
        status = self.driver(self.store.reads.status(self.job, self.now))
        self._same(status.summary, self.machine.summary())
        known = self.driver(self.store.reads.delays(self.job, [*self.machine.substreams], self.now))
        of_each = self.machine.delays
        self._same(known.statistics, self.machine.delay_statistics)
        for key, (lag, sketch) in known.substreams.items():
            substream = self.machine.substreams[key]
            ended = substream.done or self.machine.is_complete
            self._same((lag, sketch), (None if ended else substream.policy_state.lag, of_each.get(key, Sketch())))
        ledger, late = self.machine.ledger, self.driver(self.store.reads.late(self.job))
        self._same((late.diverted, late.hours), (self.machine.diverted_total, ledger.of_job))
        self._same((late.counts, late.unattributed), (self.machine.total, dict(ledger.unattributed)))
        not_on_time = [entry for entry in ledger.entries() if entry[2].late or entry[2].updated]
        self._same(*(sorted(entries, key=itemgetter(0, 1)) for entries in (late.entries, not_on_time)))
        for key in [*self.machine.substreams][:1]:
            of_one = self.driver(self.store.reads.late(self.job, key))
            of_hours = {hour: of_each[key] for hour, of_each in ledger.of_substreams.items() if key in of_each}
            self._same((of_one.diverted, of_one.hours), (self.machine.diverted_rows.get(key, 0), of_hours))
            self._same(of_one.counts, self.machine.counts.get(key, RowCounts()))
        scheduled = self.driver(self._field("next_change"))
        self._same(self._soon(int(scheduled) if scheduled else None), self._soon(self.machine.next_change_ms()))
        return table.rows, queries, status.summary

    async def _field(self, name: str) -> str | None:
        value: Any = await self.store.redis.hget(job_key(self.job), name)
        return value if value is None else str(value)

    def _soon(self, next_change_ms: int | None) -> int | None:
        """What is due already, or changes all the time, is so at the next moment; what lies beyond the numbers that the
        store holds exactly is due at the last of them.
        """
        if next_change_ms is None:
            return None
        return min(max(next_change_ms, self.machine.processing_time.observed_ms + 1), EXACT_DOUBLE.highest)

    def close(self) -> None:
        self.driver.close()
