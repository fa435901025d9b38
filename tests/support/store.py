"""A store whose commands get their values by the names of substreams, as those of the domain."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tidegate.domain.batches import PartitionReport
from tidegate.domain.commands import NO_DELAYS
from tidegate.domain.completeness import BatchAccounting, RowsByDelay
from tidegate.domain.history import NO_AUDIT, AuditInfo
from tidegate.domain.job import Run, TokenClaim
from tidegate.domain.results import Effect
from tidegate.store import jobs
from tidegate.store.pieces import Column, accounting_pieces, direct_pieces, member_pieces, partition_pieces

Values = Mapping[str, int]
NONE: Values = {}


def column(names: Iterable[str], values: Values) -> Column:
    """Return the values in the order of the names; None if there are no values."""
    return [values.get(name) for name in names] if values else None


class JobActions(jobs.JobActions):
    """Actions on substreams by name."""

    async def declare(  # type: ignore[override]
        self,
        job: str,
        query: str,
        names: Sequence[str],
        max_event_times: Values | None = None,
        *rest: Any,
        **given: Any,
    ) -> Effect:
        pieces = member_pieces(query, names, max_event_times=column(names, max_event_times or {}))
        return await super().declare(job, query, pieces, *rest, **given)

    async def restore(  # type: ignore[override]
        self, job: str, query: str, watermarks: Values, audit: AuditInfo = NO_AUDIT, now_ms: int | None = None
    ) -> Effect:
        pieces = member_pieces(query, [*watermarks], watermarks=column(watermarks, watermarks))
        return await super().restore(job, query, pieces, audit, now_ms)

    async def idle(  # type: ignore[override]
        self, job: str, query: str, names: Sequence[str], audit: AuditInfo = NO_AUDIT, now_ms: int | None = None
    ) -> Effect:
        return await super().idle(job, query, member_pieces(query, names), audit, now_ms)

    async def done(  # type: ignore[override]
        self, job: str, query: str, names: Sequence[str], audit: AuditInfo = NO_AUDIT, now_ms: int | None = None
    ) -> Effect:
        return await super().done(job, query, member_pieces(query, names), audit, now_ms)

    async def evict(  # type: ignore[override]
        self, job: str, query: str, names: Sequence[str], audit: AuditInfo = NO_AUDIT, now_ms: int | None = None
    ) -> Effect:
        return await super().evict(job, query, member_pieces(query, names), audit, now_ms)


class JobStore(jobs.JobStore):
    """Reports and batches by the names of substreams."""

    actions: JobActions

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.actions = JobActions(self._functions, self.capacity)

    async def report(  # type: ignore[override]
        self,
        job: str,
        max_event_times: Values,
        *,
        min_event_times: Values = NONE,
        watermarks: Values = NONE,
        delays: Mapping[str, RowsByDelay] = NO_DELAYS,
        token: TokenClaim | None = None,
        now_ms: int | None = None,
        quota: int | None = None,
    ) -> Effect:
        names = [*{**max_event_times, **watermarks, **delays}]
        pieces = direct_pieces(
            names,
            [delays.get(name) for name in names] if delays else None,
            max_event_times=column(names, max_event_times),
            min_event_times=column(names, min_event_times),
            watermarks=column(names, watermarks),
        )
        return await super().report(job, pieces, token, now_ms, quota)

    async def stage(  # type: ignore[override]
        self, job: str, run: Run, batch_id: int, report: PartitionReport, *rest: Any, **given: Any
    ) -> Effect:
        names = [*dict.fromkeys([*report.substreams, *report.delays])]
        pieces = partition_pieces(
            run.query,
            names,
            [report.delays.get(name) for name in names] if report.delays else None,
            max_event_times=column(names, report.max_event_times),
            watermarks=column(names, report.watermarks),
            rows=column(names, report.rows),
            future_rows=column(names, report.future_rows),
        )
        return await super().stage(job, run, batch_id, report.partition, pieces, *rest, **given)

    async def commit(  # type: ignore[override]
        self, job: str, run: Run, batch_id: int, accounting: BatchAccounting | None, *rest: Any, **given: Any
    ) -> Effect:
        return await super().commit(job, run, batch_id, accounting_pieces(run.query, accounting), *rest, **given)
