"""Merging of reports: the reports of one job that wait for the same round trip to Redis become one call.

The call has the effect of one report with all their substreams. Each caller gets the watermark after the call, and the
result of its own report.
"""

import asyncio
from collections.abc import Iterable
from contextvars import Context
from dataclasses import dataclass
from typing import Any

from tidegate.domain.errors import EventTimeMissing, TooManySubstreams
from tidegate.domain.job import TokenClaim
from tidegate.domain.results import Effect
from tidegate.store.functions import Functions, Reply
from tidegate.store.pieces import Pieces, join_columns
from tidegate.store.replies import watermark_state

MAX_EACH = 32
"""Maximum number of substreams of a merged report. Larger reports are separate calls, and small reports do not wait."""
MAX_SUBSTREAMS = 1000
"""Maximum number of substreams in a merged call. It limits the time for which the call blocks Redis."""
COLUMNS = ("members", "max_event_times", "min_event_times", "watermarks")
OF_ONE_REPORT = (EventTimeMissing, TooManySubstreams)
"""Refusals that one report of a merged call causes. Any other refusal applies to all of its reports."""


class Applied:
    """The result of a call: the watermark after it, and the members whose entries changed nothing."""

    def __init__(self, reply: Reply) -> None:
        state = watermark_state(reply)
        self._applied, self._without_effect = bool(reply.get("applied")), frozenset(reply.get("without_effect", ()))
        # All reports of the call share these results.
        self._effective, self._ineffective = Effect(state, True), Effect(state, False)

    def result_for(self, members: Iterable[str]) -> Effect:
        """Return the result of a report; it had an effect if any of its entries had one."""
        without_effect = self._without_effect and self._without_effect.issuperset(members)
        return self._effective if self._applied and not without_effect else self._ineffective


@dataclass(slots=True)
class PendingReport:
    """A report without a batch: its columns, with ``members`` and perhaps delays, and the claimed token."""

    pieces: Pieces
    token: TokenClaim | None

    @property
    def members(self) -> list[str]:
        """The members of the substreams of a small report."""
        found: list[str] = self.pieces.each[0]["members"]
        return found

    @property
    def may_merge(self) -> bool:
        """Whether the report is small and has no delays."""
        return self.pieces.size <= MAX_EACH and not self.pieces.each[0]["delayed"]


def _arguments_of(reports: list[PendingReport]) -> dict[str, Any]:
    """Return the arguments of one report of all substreams in ``reports``, which have no substream in common."""
    columns = join_columns([{name: report.pieces.each[0][name] for name in COLUMNS} for report in reports])
    return columns | {"tokens": [report.token for report in reports if report.token is not None]}


class _Group:
    """Reports of one job that have no substream in common, each with its waiting caller."""

    def __init__(self, max_substreams: int | None) -> None:
        self._max_substreams = max_substreams
        self._reports: list[PendingReport] = []
        self._members: set[str] = set()
        self._callers: list[asyncio.Future[Applied]] = []
        self._is_sent = False
        self.sending: asyncio.Task[None] | None = None

    def takes(self, report: PendingReport) -> bool:
        """Return whether the group can take a report."""
        fits = len(self._members) + len(report.members) <= MAX_SUBSTREAMS
        return fits and not self._is_sent and self._members.isdisjoint(report.members)

    def add(self, report: PendingReport) -> "asyncio.Future[Applied]":
        """Add a report, and return the future result of the call."""
        caller: asyncio.Future[Applied] = asyncio.get_running_loop().create_future()
        self._reports.append(report)
        self._members.update(report.members)
        self._callers.append(caller)
        return caller

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of the call. Afterwards, the group takes no further report."""
        self._is_sent = True
        return {**_arguments_of(self._reports), "max_substreams": self._max_substreams}

    async def send(self, functions: Functions, job: str) -> None:
        """Make the call, and give each caller its result or its error.

        If the call is refused because of one of its reports, make a call of each half instead.
        """
        try:
            applied = Applied(await functions.send("report", job, self.arguments))
        except OF_ONE_REPORT as refusal:
            if len(self._reports) > 1:
                for half in self._halves():
                    await half.send(functions, job)
            else:
                self._fail(refusal)
        except BaseException as error:
            self._fail(error)
            if not isinstance(error, Exception):
                raise
        else:
            for caller in self._unanswered():
                caller.set_result(applied)

    def _halves(self) -> list["_Group"]:
        """Return two groups with the first and the second half of the reports."""
        middle = len(self._reports) // 2
        halves = [_Group(self._max_substreams), _Group(self._max_substreams)]
        for half, part in zip(halves, (slice(None, middle), slice(middle, None)), strict=True):
            half._reports, half._callers = self._reports[part], self._callers[part]
        return halves

    def _fail(self, error: BaseException) -> None:
        for caller in self._unanswered():
            caller.set_exception(error)

    def _unanswered(self) -> list["asyncio.Future[Applied]"]:
        return [caller for caller in self._callers if not caller.done()]  # a caller may have been cancelled


class Merging:
    """The reports of all jobs that wait for a round trip."""

    def __init__(self, functions: Functions) -> None:
        self._functions = functions
        self._groups: dict[tuple[str, int | None], _Group] = {}

    async def report(self, job: str, report: PendingReport, max_substreams: int | None, now_ms: int | None) -> Effect:
        """Apply a report. Merge it with other reports of the job, unless it is large, or has delays or a time.

        Raises:
            DomainError: If this report is refused. Other reports cannot make this report fail.
        """
        with self._functions.around("report"):
            if report.may_merge and now_ms is None:
                return (await self._group_for(job, report, max_substreams).add(report)).result_for(report.members)
            columns = await self._functions.columns(job, report.pieces)
            tokens = [] if report.token is None else [report.token]
            arguments = {**columns, "tokens": tokens, "max_substreams": max_substreams}
            applied = Applied(await self._functions.send("report", job, lambda: arguments, now_ms))
            return applied.result_for(report.members if report.pieces.inline is not None else ())

    def _group_for(self, job: str, report: PendingReport, max_substreams: int | None) -> _Group:
        """Return the waiting group of a job, or a new group if the job has none or its group cannot take the report."""
        place = (job, max_substreams)
        group = self._groups.get(place)
        if group is None or not group.takes(report):
            group = self._groups[place] = _Group(max_substreams)
            # An empty context, because the logs and traces of this caller do not apply to the other callers.
            group.sending = asyncio.create_task(self._send(place, group), name="merged report", context=Context())
        return group

    async def _send(self, place: tuple[str, int | None], group: _Group) -> None:
        try:
            await group.send(self._functions, place[0])
        finally:
            if self._groups.get(place) is group:
                del self._groups[place]
