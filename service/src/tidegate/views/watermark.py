"""The watermark of a job, and the results of commands."""

from pydantic import Field

from tidegate.domain.results import Holder
from tidegate.views.types import Answer


class WatermarkState(Answer):
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
    written_watermark: int | None = Field(
        description="Written watermark: the queries of the job have written their results below it, also windows. It "
        "follows `watermark`. Null if no result is known to be written.",
        examples=[1357552800000],
    )
    written_held_by: str | None = Field(
        description="Query that has not yet written its results below `watermark`. Null if every query has.",
        examples=["hourly"],
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
        description="Whether the written watermark, or with `read` the watermark, has reached `at_least`. True if "
        "`at_least` is omitted.",
        examples=[True],
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
