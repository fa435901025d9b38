"""Whole batches of two queries, for tests that do not examine the steps of a batch."""

from tests.support.machine import JobMachine
from tidegate.domain.batches import PartitionReport
from tidegate.domain.job import Run

RUN = Run("departures", "checkpoint", "run-1")
OTHER = Run("arrivals", "checkpoint-2", "run-a")


def batch(job: JobMachine, run: Run, batch_id: int, max_event_times: dict[str, int], now_ms: int = 1) -> int | None:
    """Run a batch at one moment and return its pinned watermark."""
    pinned_watermark: int | None = job.begin(run, batch_id, now_ms).pinned_watermark
    job.stage(run, batch_id, PartitionReport(0, max_event_times), now_ms)
    job.commit(run, batch_id, None, now_ms)
    return pinned_watermark


def watermark(job: JobMachine) -> int | None:
    return job.watermark_state().watermark
