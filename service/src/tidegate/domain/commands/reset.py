"""``reset``: start a new incarnation under the same configuration, without a watermark."""

from tidegate.domain import clock
from tidegate.domain.journal import NO_AUDIT, AuditInfo
from tidegate.domain.ledger import Ledger
from tidegate.domain.merge import retain
from tidegate.domain.reply import reply
from tidegate.domain.results import WatermarkState
from tidegate.domain.state import DelayStatistics, JobState
from tidegate.domain.substreams import expect_queries, record_action


def reset(job: JobState, now_ms: int, state_epoch: str, audit: AuditInfo = NO_AUDIT) -> WatermarkState:
    """Reset a job; keep only its configuration, journal and totals."""
    clock.advance(job, now_ms)
    job.incarnation += 1
    job.state_epoch = state_epoch
    job.is_complete = job.all_idle = job.evaluation_due = False
    job.max_event_time = job.max_watermark = job.merged_highest = None
    job.coalesced_watermark = job.watermark = None
    job.coalesced_watermark_since_ms = job.watermark_since_ms = job.now_ms
    job.retention = job.unattended_at_evaluation_ms = None
    retain(job)
    for table in (job.substreams, job.queries, job.last_seen, job.holds):
        table.clear()
    for counts in (job.counts, job.reported_rows, job.future_rows, job.diverted_rows, job.delays):
        counts.clear()
    job.delay_statistics, job.ledger = DelayStatistics(), Ledger()
    job.recorded = (None, None)
    record_action(job, "reset", audit)
    expect_queries(job)
    return reply(job)
