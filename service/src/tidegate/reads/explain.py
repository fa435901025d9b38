"""The explanation of a watermark: its holders and their deadlines."""

from dataclasses import asdict

from pydantic import Field

from tidegate.domain.views import explain
from tidegate.reads.config import stored_config
from tidegate.reads.reader import Reader
from tidegate.reads.types import Record
from tidegate.reads.watermark import Holder, WatermarkState
from tidegate.store.snapshot import Snapshot


class LimitDeadline(Record):
    """A limit that lets the watermark pass a holder, and the time at which it acts."""

    limit: str = Field(
        description="Name of the limit, or `expires_ms` for the expiry of a hold.", examples=["idle_timeout_ms"]
    )
    at_ms: int = Field(
        description="Processing time at which the limit acts if the holder sends nothing.", examples=[1357555512000]
    )
    needs_query_report: bool = Field(
        description="Whether the limit acts only after the query confirms, by a commit or heartbeat, that it has no "
        "data.",
        examples=[True],
    )


class ExplainedHolder(Holder):
    """A holder, and the watermark without it and the holders before it in the list."""

    until: list[LimitDeadline] = Field(description="Limits that let the watermark pass the holder, sorted by time.")
    coalesced_watermark_without: int | None = Field(
        description="Coalesced watermark without this holder and the holders before it.", examples=[1357556400000]
    )
    watermark_without: int | None = Field(
        description="Emitted watermark without this holder and the holders before it.", examples=[1357556400000]
    )


class Explanation(WatermarkState):
    """The holders of a watermark, and the next step of the throttle."""

    holders: list[ExplainedHolder] = Field(
        description="Holders. The first holder holds the watermark now. Each further holder would hold it without the "
        "holders before it in the list. Empty if the watermark has no holder."
    )
    next_step: int | None = Field(
        description="Value that the merged watermark must reach before the coalesced watermark moves. Null if any "
        "advance moves it.",
        examples=[1357556400000],
    )


async def read_explanation(reader: Reader, job: str, limit: int) -> Explanation:
    """Return the explanation of a watermark, with its first ``limit`` holders.

    Raises:
        JobNotFound: If the job does not exist.
        JobDeleted: If the job was deleted.
    """
    return explanation_of(reader, job, await reader.store.reads.held(job, limit), limit)


def explanation_of(reader: Reader, job: str, snapshot: Snapshot, limit: int) -> Explanation:
    """Return the explanation of a job's watermark from a snapshot of the job."""
    state = snapshot.job(stored_config(snapshot.config))
    explanation = explain(state, state.now_ms, limit)
    return Explanation(
        **reader.members(job, explanation.state),
        holders=[ExplainedHolder.model_validate(asdict(one) | asdict(one.holder)) for one in explanation.holders],
        next_step=explanation.next_step,
    )
