"""``configure``: create a job, or change its configuration."""

from tidegate.domain import clock
from tidegate.domain.config import JobConfig
from tidegate.domain.errors import RevisionMismatch
from tidegate.domain.evaluate import evaluate
from tidegate.domain.idleness import is_silent
from tidegate.domain.journal import NO_AUDIT, AuditInfo, Kind
from tidegate.domain.merge import retain
from tidegate.domain.names import DIRECT, PLACEHOLDER
from tidegate.domain.observation import change_policy
from tidegate.domain.reply import reply
from tidegate.domain.results import WatermarkState
from tidegate.domain.state import ANY_VERSION, ConfigVersion, JobState
from tidegate.domain.substreams import expect_queries


def create(job: JobState, audit: AuditInfo = NO_AUDIT) -> WatermarkState:
    """Start a new job from its configuration and processing time."""
    job.completed_ms = job.coalesced_watermark_since_ms = job.watermark_since_ms = job.now_ms
    retain(job)
    job.journal.write(job.now_ms, Kind.CREATED, actor=audit.actor, reason=audit.reason)
    expect_queries(job)
    return reply(job)


def check_version(job: JobState, version: ConfigVersion) -> None:
    """Check that the configuration of a job has a version.

    Raises:
        RevisionMismatch: If it has another version.
    """
    if version.state_epoch not in (None, job.state_epoch) or version.revision not in (None, job.revision):
        raise RevisionMismatch(job.revision)


def configure(
    job: JobState,
    config: JobConfig,
    now_ms: int,
    audit: AuditInfo = NO_AUDIT,
    version: ConfigVersion = ANY_VERSION,
) -> WatermarkState:
    """Apply a configuration immediately, if the current configuration has a version.

    Watermarks do not go back. A changed policy starts from the max event time of the substream; an equal policy keeps
    its state. Idle substreams become active if they are not silent under the new ``idle_timeout_ms``.
    """
    check_version(job, version)
    clock.advance(job, now_ms)
    if job.config.idle_timeout_ms is None and config.idle_timeout_ms is not None:
        # The silence of reports without batches was not measured before, so it starts now.
        for (query, _), substream in job.substreams.items():
            if query == DIRECT and not substream.done:
                substream.last_event_ms = job.processing_time.observed_ms
    job.config = config
    job.revision += 1
    retain(job)
    job.journal.write(job.now_ms, Kind.CONFIG, actor=audit.actor, reason=audit.reason)
    for (query, name), substream in job.substreams.items():
        stays_idle = substream.done or substream.forced_idle or is_silent(job, query, substream)
        if substream.idle and not stays_idle:
            substream.idle, substream.since_ms = False, job.now_ms
        if name != PLACEHOLDER and not substream.done:
            change_policy(job, substream, config.policy_of(name))
    expect_queries(job)
    evaluate(job)
    return reply(job)
