"""The explanation of a watermark: its holders, and when it moves."""

from dataclasses import asdict

from pydantic import Field

from tidegate.domain.explain import explain
from tidegate.reads.config import JobDocument
from tidegate.reads.reader import Reader
from tidegate.reads.types import Record
from tidegate.reads.watermark import Holder, WatermarkState


class LimitDeadline(Record):
    """A limit that lets the watermark pass a holder, and when."""

    limit: str = Field(
        description="Name of the limit; `expires_ms` for the end of a hold.", examples=["idle_timeout_ms"]
    )
    at_ms: int = Field(
        description="Processing time at which the limit acts if the holder sends nothing.", examples=[1357555512000]
    )
    needs_query_report: bool = Field(
        description="Whether the limit also needs a commit or heartbeat by which the query confirms that it has no "
        "data. It may then act later.",
        examples=[True],
    )


class ExplainedHolder(Holder):
    """A holder, and the watermark without it and without the holders before it in the list."""

    until: list[LimitDeadline] = Field(description="Limits that let the watermark pass, in the order of their times.")
    coalesced_watermark_without: int | None = Field(
        description="Coalesced watermark without these holders.", examples=[1357556400000]
    )
    watermark_without: int | None = Field(
        description="Emitted watermark without these holders.", examples=[1357556400000]
    )


class Explanation(WatermarkState):
    """The holders of a watermark, and what happens next."""

    holders: list[ExplainedHolder] = Field(
        description="Holders in the order in which they hold the watermark. Empty: nothing holds it."
    )
    next_step: int | None = Field(
        description="Value that the data must reach before the throttle emits. Null: any advance is emitted.",
        examples=[1357556400000],
    )


async def read_explanation(reader: Reader, job: str, limit: int) -> Explanation:
    """Return the explanation of a watermark, with its first ``limit`` holders.

    Raises:
        JobNotFound: If the job does not exist.
        JobDeleted: If it was deleted.
    """
    snapshot = await reader.store.reads.held(job, limit)
    state = snapshot.job(JobDocument.model_validate(snapshot.config).config())
    explanation = explain(state, state.now_ms, limit)
    return Explanation(
        **reader.members(job, explanation.state),
        holders=[ExplainedHolder.model_validate(asdict(one) | asdict(one.holder)) for one in explanation.holders],
        next_step=explanation.next_step,
    )
