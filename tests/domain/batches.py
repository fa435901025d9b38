"""Whole batches of two queries, for tests that do not examine the steps of a batch."""

from collections import Counter
from collections.abc import Iterable, Mapping

from tests.support.machine import JobMachine
from tidegate.domain.batches import BeginOptions, PartitionReport
from tidegate.domain.calendar import Frames
from tidegate.domain.completeness import BatchAccounting, RowCounts
from tidegate.domain.config import JobConfig
from tidegate.domain.job import Run
from tidegate.domain.policies import LimitingLag

RUN = Run("departures", "checkpoint", "run-1")
OTHER = Run("arrivals", "checkpoint-2", "run-a")

FRAME, HIGHEST_MS = 10, 100
LEARNING = JobConfig(
    LimitingLag(0),
    frames=Frames(FRAME),
    arrival_target=0.9,
    max_arrival_delay_ms=HIGHEST_MS,
    max_future_skew_ms=None,
    delay_half_life_ms=200,
)
"""Configuration of a job that learns its arrival delay, in small numbers."""


def batch(job: JobMachine, run: Run, batch_id: int, max_event_times: dict[str, int], now_ms: int = 1) -> int | None:
    """Run a batch at one moment and return its pinned watermark."""
    pinned_watermark: int | None = job.begin(run, batch_id, now_ms).pinned_watermark
    job.stage(run, batch_id, PartitionReport(0, max_event_times), now_ms)
    job.commit(run, batch_id, None, now_ms)
    return pinned_watermark


def watermark(job: JobMachine) -> int | None:
    return job.watermark_state().watermark


def read(
    job: JobMachine,
    batch_id: int,
    event_times: Mapping[str, int | Iterable[int]],
    now_ms: int,
    run: Run = RUN,
    age_ms: int | None = 0,
) -> int | None:
    """Run a batch that has read all input of at least an age (None: unknown); return its pinned watermark."""
    rows = {name: [times] if isinstance(times, int) else [*times] for name, times in event_times.items()}
    pinned: int | None = job.begin(run, batch_id, now_ms, BeginOptions(input_age_ms=age_ms)).pinned_watermark
    job.stage(run, batch_id, PartitionReport(0, {name: max(times) for name, times in rows.items()}), now_ms)
    length = job.config.frames.length if job.config.frames else FRAME
    by_frame = Counter(time // length * length for times in rows.values() for time in times)
    counts = [RowCounts(len(times), 0, 0, 0, 0) for times in rows.values()]
    frames = tuple((start, count, 0, 0) for start, count in by_frame.items())
    job.commit(run, batch_id, BatchAccounting(tuple(rows), tuple(counts), frames=frames), now_ms)
    return pinned
