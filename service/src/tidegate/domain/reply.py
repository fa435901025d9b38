"""The last step of every command: record the watermark, and return it."""

from tidegate.domain.emission import watermark_state
from tidegate.domain.journal import Kind
from tidegate.domain.results import WatermarkState
from tidegate.domain.state import JobState


def reply(job: JobState) -> WatermarkState:
    """Record the movement of the watermark since the last reply, and return the watermark."""
    state = watermark_state(job)
    if (state.coalesced_watermark, state.watermark) != job.recorded:
        kind = Kind.COALESCED_WATERMARK if state.watermark == job.recorded[1] else Kind.EMISSION
        job.recorded = state.coalesced_watermark, state.watermark
        job.emissions += kind == Kind.EMISSION
        _record(job, kind, state)
    job.timeline.record(state)
    job.limits_passed = ()
    return state


def _record(job: JobState, kind: Kind, state: WatermarkState) -> None:
    details: dict[str, object] = {"coalesced_watermark": state.coalesced_watermark, "watermark": state.watermark}
    if state.held_by is not None:
        holder = state.held_by
        details |= {"held_by": holder.reason, "query": holder.query, "substream": holder.substream}
        details |= {"batch_id": holder.batch_id, "hold": holder.hold}
    job.journal.write(job.now_ms, kind, **details, limits=list(job.limits_passed) or None)
