"""The explanation of a watermark: its holders and their deadlines."""

from pydantic import Field

from tidegate.domain.views import ExplainedHolder, explain
from tidegate.store.replies import Snapshot
from tidegate.views.config import stored_config
from tidegate.views.reader import Reader
from tidegate.views.watermark import WatermarkState


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
        holders=explanation.holders,
        next_step=explanation.next_step,
    )
