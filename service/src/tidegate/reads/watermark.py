"""The watermark of a job, and the results of commands."""

from typing import Literal

from pydantic import Field

from tidegate.reads.types import Record


class Holder(Record):
    """The substream, open batch, missing query or hold that keeps the watermark at its value."""

    reason: Literal["slow", "never_reported", "blocked", "missing_query", "open_batch", "hold"] = Field(
        description="`slow`: the active substream with the lowest watermark. `never_reported`: a declared substream "
        "without events. `blocked`: a substream that is silent for longer than the idle timeout, while its query has "
        "not confirmed that it has no data. `missing_query`: an expected query without substreams. `open_batch`: an "
        "open batch. `hold`: a hold by an operator.",
        examples=["slow"],
    )
    query: str = Field(description="Query of the substream or batch, or the missing query.", examples=["departures"])
    substream: str | None = Field(description="Substream that holds the watermark.", examples=["HNL"])
    batch_id: int | None = Field(description="Open batch that holds the watermark.", examples=[None])
    hold: str | None = Field(description="Name of the hold.", examples=[None])
    since_ms: int = Field(
        description="Processing time of the last movement of the watermark, in Unix milliseconds.",
        examples=[1357554600000],
    )
    last_event_ms: int | None = Field(
        description="Processing time at which the last report of the substream took effect.", examples=[1357554612000]
    )
    begun_ms: int | None = Field(description="Processing time at which the open batch began.", examples=[None])


class WatermarkState(Record):
    """The watermark of a job at one moment."""

    job: str = Field(description="Name of the job.", examples=["flights"])
    watermark: int | None = Field(
        description="Emitted watermark. No on-time row with an earlier event time is still expected. Null if the job "
        "has no watermark yet.",
        examples=[1357552800000],
    )
    coalesced_watermark: int | None = Field(
        description="Merged and throttled watermark, before pinned watermarks are applied. Null if the job has no "
        "watermark yet.",
        examples=[1357554600000],
    )
    complete: bool = Field(description="Whether the input of the job has ended.", examples=[False])
    now_ms: int = Field(
        description="Processing time of the coordinator in Unix milliseconds.", examples=[1357554660000]
    )
    state_epoch: str = Field(
        description="Id that changes when the job starts with new state: after data loss, a deletion or a reset.",
        examples=["5c1f0e8d9a3b7f42"],
    )
    incarnation: int = Field(
        description="Number of the incarnation. Each deletion or reset increases it.", examples=[1]
    )
    watermark_token: str = Field(
        description="Proof of this watermark. Send it with your next call.",
        examples=["1.1357552800000.dGhpcyBpcyBhbiBleGFtcGxl"],
    )
    held_by: Holder | None = Field(description="Holder of the watermark. Null if the watermark has no holder.")


class WaitResult(WatermarkState):
    """The watermark after a wait."""

    reached: bool = Field(
        description="Whether the watermark has reached `at_least`. True if `at_least` is omitted.", examples=[True]
    )


class CommandResult(WatermarkState):
    """The result of a command that can be repeated safely."""

    applied: bool = Field(
        description="False if the command changed nothing, because it was repeated or late, or because all its event "
        "times are too far in the future.",
        examples=[True],
    )


class HoldResult(CommandResult):
    """The result of a request for a hold."""

    hold: str = Field(description="Name of the hold. Use it to release the hold.", examples=["audit"])
