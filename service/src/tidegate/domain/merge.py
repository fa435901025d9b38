"""Merging: compute C from the watermarks of the substreams.

C is the minimum watermark of the substreams that count, after retention, holds and the throttle. C never goes back.
Source: Hazelcast Jet, ``WatermarkCoalescer`` and ``EventTimeMapper``; see the conformance traces.
"""

from collections.abc import Sequence

from tidegate.domain import holds
from tidegate.domain.emission import advance
from tidegate.domain.history import History
from tidegate.domain.numbers import above, highest
from tidegate.domain.state import JobState
from tidegate.domain.throttle import offer


def retain(job: JobState) -> None:
    """Start a new history of the max watermark if ``max_retention_ms`` has changed."""
    length_ms = job.config.max_retention_ms
    if length_ms != (None if job.retention is None else job.retention.length_ms):
        job.retention = None if length_ms is None else History(length_ms)


def merged_watermark(job: JobState) -> int | None:
    """Return the value that C would have without the throttle."""
    return highest(job.merged_highest, job.coalesced_watermark)


def merge(job: JobState, watermarks: Sequence[int | None], idle_ones: Sequence[int | None], is_sweep: bool) -> bool:
    """Merge the watermarks of the substreams that count, and move C; return whether retention moved C.

    If no substream counts, the merged watermark is the max watermark. It includes the watermarks of idle substreams
    that follow the clock. Retention acts in sweeps only.
    """
    before = job.coalesced_watermark
    max_watermark = highest(job.max_watermark, *watermarks, *idle_ones)
    has_risen, job.max_watermark = above(max_watermark, job.max_watermark), max_watermark
    job.all_idle = not watermarks
    merged = job.max_watermark if job.all_idle else _minimum(watermarks)
    retained = _retained(job, has_risen, is_sweep)
    offered = holds.cap(job, highest(merged, retained))
    advance(job, offer(job.config.throttle, offered, before, job.numbers))
    if above(offered, job.merged_highest):
        job.merged_highest = offered
        job.throttled += job.coalesced_watermark == before and above(offered, before)
    return above(job.coalesced_watermark, before) and above(job.coalesced_watermark, merged)


def _minimum(watermarks: Sequence[int | None]) -> int | None:
    present = [watermark for watermark in watermarks if watermark is not None]
    return min(present) if len(present) == len(watermarks) else None


def _retained(job: JobState, has_risen: bool, is_sweep: bool) -> int | None:
    """Return the max watermark of ``max_retention_ms`` ago; None if retention does not act."""
    if job.retention is None or not (is_sweep or has_risen):
        return None
    sampled = job.retention.sample(job.processing_time.observed_ms, job.max_watermark)
    return sampled if is_sweep else None
