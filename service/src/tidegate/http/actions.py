"""Request bodies for the actions of operators and clients, and the ``hold`` action, which generates missing names."""

import secrets
from collections.abc import Iterable
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from tidegate import times
from tidegate.domain.calendar import DAY_MS
from tidegate.domain.history import AuditInfo
from tidegate.domain.results import Effect
from tidegate.http.problems import Problem
from tidegate.store.jobs import JobStore
from tidegate.store.pieces import Pieces, member_pieces
from tidegate.views.types import (
    Column,
    EventTime,
    Id,
    Names,
    PositiveMs,
    Request,
    SubstreamsRequest,
    Text,
    check_equal_lengths,
)

REASON = Field(
    default="",
    max_length=1000,
    description="Reason for the action. The history keeps it.",
    examples=["Honolulu is closed for the winter"],
)
FORCE_TEXT = (
    "Whether to accept a time that looks like seconds, microseconds or a date in place of milliseconds. Not needed if "
    "`max_future_skew_ms` is null, because event times can then have any unit."
)
FORCE = Field(default=False, strict=True, description=FORCE_TEXT, examples=[False])


class ActionRequest(Request):
    """A request for an action on a whole job."""

    reason: Text = REASON


class CompleteRequest(ActionRequest):
    """A request to end the input of a job."""

    up_to: EventTime | None = Field(
        default=None,
        description="The watermark moves at least to this value, even if the job is already complete. Use it if Spark "
        "operators keep state beyond the last event time, such as the time bound of a join.",
        examples=[1357603200000],
    )
    force: bool = FORCE


class SubstreamActionRequest(SubstreamsRequest):
    """A request for an action on substreams of one query."""

    substreams: Names = Field(description="Names of the substreams.", examples=[["HNL"]])
    query: Id | Literal[""] = Field(
        default="",
        description="Query of the substreams. Empty if they were reported without batches.",
        examples=["departures"],
    )
    reason: Text = REASON

    def _to_pieces(self, query: str) -> Pieces:
        return member_pieces(self.query, self.substreams)

    def _empty(self) -> dict[str, Any]:
        return {"substreams": []}


class DeclareRequest(SubstreamActionRequest):
    """A request to declare substreams, which then hold the watermark from the start."""

    max_event_times: Column[EventTime | None] | None = Field(
        default=None,
        description="Max event times of the substreams, for a job that has lost them. The values have no effect "
        "on substreams that have event times.",
        examples=[[1357552800000]],
    )

    @model_validator(mode="after")
    def _check_columns(self) -> Self:
        check_equal_lengths(self, ("max_event_times",), "substreams")
        return self

    def _to_pieces(self, query: str) -> Pieces:
        return member_pieces(self.query, self.substreams, max_event_times=self.max_event_times)

    def _empty(self) -> dict[str, Any]:
        return {"substreams": [], "max_event_times": None}


class RestoreRequest(SubstreamActionRequest):
    """A request to set the watermarks of substreams to values from another system."""

    watermarks: Column[EventTime] = Field(
        description="Watermark of each substream in `substreams`.", examples=[[1357552800000]]
    )
    force: bool = FORCE

    @model_validator(mode="after")
    def _check_columns(self) -> Self:
        check_equal_lengths(self, ("watermarks",), "substreams")
        return self

    def _to_pieces(self, query: str) -> Pieces:
        return member_pieces(self.query, self.substreams, watermarks=self.watermarks)

    def _empty(self) -> dict[str, Any]:
        # check_times() needs the doubtful watermarks.
        return {"substreams": [], "watermarks": [at for at in self.watermarks if times.doubt_about(at)][:1]}


class HandOverRequest(ActionRequest):
    """A request to retire a query whose substreams another query continues."""

    successor: Id = Field(
        description="Query that takes over the substreams. Name the query itself to continue on another checkpoint.",
        examples=["departures-v2"],
    )


class HoldRequest(Request):
    """A request to hold the watermark."""

    at_most: EventTime = Field(
        description="The watermark stays at or below this value. If it is already higher, it does not move.",
        examples=[1357552800000],
    )
    reason: Text = Field(
        min_length=1,
        max_length=1000,
        description="Reason for the hold. The status of the job shows it.",
        examples=["Audit of January"],
    )
    hold: Id | None = Field(
        default=None, description="Name of the hold. If null, the coordinator chooses a name.", examples=["audit"]
    )
    duration_ms: PositiveMs | None = Field(
        default=None,
        description="Duration of the hold in milliseconds. If null, the hold does not expire.",
        examples=[7200000],
    )
    force: bool = FORCE


async def check_times(store: JobStore, job: str, field: str, given: Iterable[int], force: bool) -> None:
    """Raise Problem if a time of a request is unlikely to be in milliseconds, unless the caller insists.

    Args:
        store: The store of the job.
        job: The job. Without ``max_future_skew_ms``, its event times can have any unit, so all times are accepted.
        field: Member or parameter of the request with the times.
        given: The times.
        force: Whether the caller insists.
    """
    doubt = next(filter(None, map(times.doubt_about, given)), None)
    if doubt is None or force:
        return
    config = (await store.reads.status(job)).config
    if config.get("max_future_skew_ms", DAY_MS) is not None:
        raise Problem.of_field(field, f"{doubt}. To use {field} as it is, insist with force.")


def check_processing_time(field: str, at_ms: int | None) -> None:
    """Raise Problem if a processing time of a request is unlikely to be in milliseconds."""
    doubt = None if at_ms is None else times.doubt_about(at_ms)
    if doubt is not None:
        raise Problem.of_field(field, f"{doubt}.")


async def hold(store: JobStore, job: str, request: HoldRequest, audit: AuditInfo) -> tuple[str, Effect]:
    """Hold the watermark, and return the name of the hold and the result of the command."""
    await check_times(store, job, "at_most", [request.at_most], request.force)
    name = request.hold or secrets.token_hex(4)
    return name, await store.actions.hold(job, name, request.at_most, request.duration_ms, audit)
