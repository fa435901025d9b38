"""The watermark of a job, and the results of commands."""

from typing import Literal

from pydantic import Field

from tidegate.reads.types import Record


class Holder(Record):
    """The substream, open batch, missing query or hold that keeps the watermark where it is."""

    reason: Literal["slow", "never_reported", "blocked", "missing_query", "open_batch", "hold"] = Field(
        description="`slow`: the active substream with the lowest watermark. `never_reported`: a declared substream "
        "without events. `blocked`: a substream that is silent for longer than the idle timeout, but its query has not "
        "confirmed that it has no data. `missing_query`: an expected query without substreams. `open_batch`: a batch "
        "that is not committed yet. `hold`: a hold by an operator.",
        examples=["slow"],
    )
    query: str = Field(description="Query of the substream or batch; empty without a query.", examples=["departures"])
    substream: str | None = Field(description="Substream that holds the watermark.", examples=["HNL"])
    batch_id: int | None = Field(description="Open batch that holds the watermark.", examples=[None])
    hold: str | None = Field(description="Name of the hold.", examples=[None])
    since_ms: int = Field(
        description="Processing time since which the watermark has its value, in Unix milliseconds.",
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
        description="Emitted watermark: no on-time row with an earlier event time is still expected. Null: none yet.",
        examples=[1357552800000],
    )
    coalesced_watermark: int | None = Field(
        description="Watermark that the data supports, before open batches and holds are applied. Null: none yet.",
        examples=[1357554600000],
    )
    complete: bool = Field(description="Whether the input of the job has ended.", examples=[False])
    now_ms: int = Field(
        description="Processing time of the coordinator in Unix milliseconds.", examples=[1357554660000]
    )
    state_epoch: str = Field(
        description="Changes when the job starts with new state: after a loss of the store, a deletion or a reset.",
        examples=["5c1f0e8d9a3b7f42"],
    )
    incarnation: int = Field(
        description="Number of the incarnation; higher only after a deletion or a reset.", examples=[1]
    )
    watermark_token: str = Field(
        description="Proof of this watermark. Send it with your next call.",
        examples=["1.1357552800000.dGhpcyBpcyBhbiBleGFtcGxl"],
    )
    held_by: Holder | None = Field(description="What holds the watermark. Null: nothing does.")


class WaitResult(WatermarkState):
    """The watermark after a wait."""

    reached: bool = Field(
        description="Whether the watermark is at or above `at_least`; true without `at_least`.", examples=[True]
    )


class CommandResult(WatermarkState):
    """The result of a command that can be repeated safely."""

    applied: bool = Field(
        description="False if the command changed nothing: it was a repetition, it came too late, or all of its event "
        "times are too far in the future.",
        examples=[True],
    )


class HoldResult(CommandResult):
    """The result of a request for a hold."""

    hold: str = Field(description="Name of the hold; use it to release the hold.", examples=["audit"])
