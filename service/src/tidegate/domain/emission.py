"""Emission: the watermark W that clients receive, and its holder.

``W = min(C, pinned watermarks of the open batches that are not released)``. Neither C nor W goes back.
"""

from dataclasses import dataclass

from tidegate.domain import holds
from tidegate.domain.clock import observed_time, outage_ms
from tidegate.domain.idleness import state_of
from tidegate.domain.names import PLACEHOLDER, SubstreamKey, member
from tidegate.domain.numbers import above, by_value
from tidegate.domain.results import Holder, HoldReason, WatermarkState
from tidegate.domain.state import JobState, Substream


@dataclass(frozen=True, slots=True)
class OpenPin:
    """The pinned watermark of an open batch, and its query."""

    value: int | None
    query: str


def advance(job: JobState, coalesced_watermark: int | None) -> None:
    """Raise C to a watermark; a lower watermark changes nothing."""
    if above(coalesced_watermark, job.coalesced_watermark):
        job.coalesced_watermark, job.coalesced_watermark_since_ms = coalesced_watermark, job.now_ms


def emit(job: JobState) -> None:
    """Raise W to the lower of C and the lowest pinned watermark of the open batches that are not released."""
    watermark, pin = job.coalesced_watermark, lowest_pin(job)
    if pin is not None and above(watermark, pin.value):
        watermark = pin.value
    raise_watermark(job, watermark)


def raise_watermark(job: JobState, watermark: int | None) -> None:
    """Raise W and C to a watermark that is safe to emit or was emitted before."""
    advance(job, watermark)
    if above(watermark, job.watermark):
        job.watermark, job.watermark_since_ms = watermark, job.now_ms


def lowest_pin(job: JobState) -> OpenPin | None:
    """Return the lowest pinned watermark of the open batches that hold W; None if no batch holds W."""
    pins = (
        OpenPin(query.pinned_watermarks[query.latest], name)
        for name, query in job.queries.items()
        if query.open and not query.released and query.latest is not None
    )
    return min(pins, key=lambda pin: (by_value(pin.value), pin.query.encode()), default=None)


def slowest(job: JobState) -> tuple[SubstreamKey, Substream] | None:
    """Return the counting substream with the lowest watermark; None if no substream counts."""
    counting = ((key, substream) for key, substream in job.substreams.items() if substream.counts)
    return min(
        counting, key=lambda item: (by_value(item[1].uncapped_watermark), member(item[0]).encode()), default=None
    )


def held_by(job: JobState) -> Holder | None:
    """Return the holder of W; None if the job is complete or W has no holder."""
    pin, behind = lowest_pin(job), slowest(job)
    if pin is not None and (behind is None or above(job.coalesced_watermark, pin.value)):
        query = job.queries[pin.query]
        since_ms = job.watermark_since_ms
        return Holder("open_batch", pin.query, None, query.latest, since_ms, begun_ms=query.begun_ms)
    if job.is_complete:
        return None
    since_ms = job.coalesced_watermark_since_ms
    hold, furthest = holds.lowest(job), job.max_watermark if behind is None else behind[1].uncapped_watermark
    if hold is not None and above(furthest, hold.at_most):
        return Holder("hold", "", None, None, since_ms, hold.hold)
    if behind is None:
        return None
    (query_name, name), substream = behind
    if name == PLACEHOLDER:
        return Holder("missing_query", query_name, None, None, since_ms)
    reason: HoldReason = "slow"
    if state_of(substream, observed_time(job, query_name), job.config.idle_timeout_ms) == "blocked":
        reason = "blocked"
    elif substream.max_event_time is None and substream.uncapped_watermark is None:
        reason = "never_reported"
    last_event_ms = substream.last_event_ms + outage_ms(job, query_name)
    return Holder(reason, query_name, name, None, since_ms, last_event_ms=last_event_ms)


def watermark_state(job: JobState) -> WatermarkState:
    """Return the current watermark of a job."""
    return WatermarkState(
        job.incarnation,
        job.state_epoch,
        job.now_ms,
        job.watermark,
        job.coalesced_watermark,
        job.is_complete,
        held_by(job),
    )
