"""Reports of one job that wait for the same round trip to Redis are merged into one call.

The effect is that of one report of all their substreams. Each caller gets the watermark after it, and its own result.
"""

import asyncio
from collections.abc import Mapping
from contextvars import Context
from dataclasses import dataclass
from typing import Any

from tidegate.domain.errors import DomainError
from tidegate.store.functions import Functions, Reply

MAX_EACH = 32
"""A report of more substreams is a call of its own, so that small reports do not wait for it."""
MAX_SUBSTREAMS = 1000
"""Maximum number of substreams in a merged call. It limits the time for which the call blocks Redis."""


@dataclass(frozen=True, slots=True)
class Report:
    """A report without a batch, as arguments of the command ``report``: columns by members, and the client's token."""

    members: list[str]
    max_event_times: list[int | None]
    watermarks: list[int | None]
    min_event_times: list[int | None]
    token: Mapping[str, int | None] | None

    def has_effect(self, reply: Reply) -> bool:
        """Return whether any entry of this report has changed its substream."""
        return not set(self.members) <= set(reply["without_effect"])


def arguments_of(reports: list[Report]) -> dict[str, Any]:
    """Return the arguments of one report of all substreams in ``reports``, which have no substream in common."""
    return {
        "members": [member for report in reports for member in report.members],
        "max_event_times": [time for report in reports for time in report.max_event_times],
        "watermarks": [watermark for report in reports for watermark in report.watermarks],
        "min_event_times": [time for report in reports for time in report.min_event_times],
        "tokens": [report.token for report in reports if report.token is not None],
    }


class _Group:
    """Reports of one job that have no substream in common."""

    def __init__(self, max_substreams: int | None) -> None:
        self._max_substreams = max_substreams
        self._reports: list[Report] = []
        self._members: set[str] = set()
        self._is_sent = False
        self.reply: asyncio.Task[Reply]

    def __len__(self) -> int:
        return len(self._reports)

    def takes(self, report: Report) -> bool:
        """Return whether the report can be added."""
        fits = len(self._members) + len(report.members) <= MAX_SUBSTREAMS
        return fits and not self._is_sent and self._members.isdisjoint(report.members)

    def add(self, report: Report) -> None:
        self._reports.append(report)
        self._members.update(report.members)

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of the call. From now on, the group takes no report."""
        self._is_sent = True
        return {**arguments_of(self._reports), "max_substreams": self._max_substreams}


class Merging:
    """The reports of all jobs that wait for a round trip."""

    def __init__(self, functions: Functions) -> None:
        self._functions = functions
        self._groups: dict[tuple[str, int | None], _Group] = {}

    async def report(self, job: str, report: Report, max_substreams: int | None) -> Reply:
        """Apply a report together with other reports of the same job; return the reply to the merged call.

        If the merged call is refused, each of its reports is a call of its own, so that a report fails for its own
        reasons only.

        Raises:
            DomainError: If this report is refused.
        """
        with self._functions.around("report"):
            if len(report.members) > MAX_EACH:
                return await self._alone(job, report, max_substreams)
            group = self._group_for(job, report, max_substreams)
            try:
                return await asyncio.shield(group.reply)  # a caller that is cancelled leaves the others their reply
            except DomainError:
                if len(group) == 1:
                    raise
            return await self._alone(job, report, max_substreams)

    async def _alone(self, job: str, report: Report, max_substreams: int | None) -> Reply:
        arguments = {**arguments_of([report]), "max_substreams": max_substreams}
        return await self._functions.send("report", job, lambda: arguments)

    def _group_for(self, job: str, report: Report, max_substreams: int | None) -> _Group:
        """Add a report to the waiting group of its job, or to a new group; return the group."""
        place = (job, max_substreams)
        group = self._groups.get(place)
        if group is None or not group.takes(report):
            group = self._groups[place] = _Group(max_substreams)
            # Without the context of this caller: its logs and traces are not those of the other callers.
            group.reply = asyncio.create_task(self._send(job, group), name="merged report", context=Context())
            group.reply.add_done_callback(lambda _: self._forget(place, group))
        group.add(report)
        return group

    async def _send(self, job: str, group: _Group) -> Reply:
        return await self._functions.send("report", job, group.arguments)

    def _forget(self, place: tuple[str, int | None], group: _Group) -> None:
        if self._groups.get(place) is group:
            del self._groups[place]
