"""``sweep``: evaluate the job because time has passed."""

from tidegate.domain import clock, evaluate
from tidegate.domain.reply import reply
from tidegate.domain.results import WatermarkState
from tidegate.domain.state import JobState


def sweep(job: JobState, now_ms: int) -> WatermarkState:
    """Evaluate the job because time has passed, and return its watermark."""
    clock.advance(job, now_ms)
    evaluate.sweep(job)
    return reply(job)
