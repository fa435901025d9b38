"""The evaluation: decide which substreams count, merge their watermarks, throttle, emit."""

from tidegate.domain import batches, holds, idleness
from tidegate.domain.config import POLICY_LIMITS
from tidegate.domain.delays import count_wait
from tidegate.domain.emission import emit
from tidegate.domain.journal import Kind, named
from tidegate.domain.merge import merge
from tidegate.domain.names import SubstreamKey, member
from tidegate.domain.numbers import above, by_value
from tidegate.domain.observation import poll
from tidegate.domain.state import JobState, Substream

Counting = list[tuple[SubstreamKey, Substream]]


def evaluate(job: JobState, cap: int | None = None) -> None:
    """Evaluate the job after a change.

    Args:
        job: The job.
        cap: Lowest event time of the report that caused the evaluation. Watermarks that follow the clock do not pass
            this time, so that the report does not make its own rows late. None: no cap.
    """
    _evaluate(job, cap, is_sweep=False)


def sweep(job: JobState) -> None:
    """Evaluate the job because time has passed. Retention acts in sweeps only."""
    _evaluate(job, None, is_sweep=True)


def _evaluate(job: JobState, cap: int | None, is_sweep: bool) -> None:
    if job.is_complete:
        return
    holds.expire(job)
    batches.release_overdue(job)
    idleness.time_out_queries(job)
    idleness.expire(job)
    counting = [(key, substream) for key, substream in job.substreams.items() if substream.counts]
    polled = [substream for substream in job.substreams.values() if job.polls(substream)]
    for substream in polled:
        poll(job, substream, cap)
    job.unattended_at_evaluation_ms = job.unattended_ms
    job.evaluation_due = cap is not None and any(
        substream.policy.follows_clock and above(substream.uncapped_watermark, cap) for substream in polled
    )
    before, was_all_idle = job.coalesced_watermark, job.all_idle
    watermarks, idle_ones = [s.watermark for _, s in counting], [s.watermark for s in polled if not s.counts]
    is_retained = merge(job, watermarks, idle_ones, is_sweep)
    if above(job.coalesced_watermark, before):
        _record_limits(job, counting, is_retained)
    _record_all_idle(job, was_all_idle)
    emit(job)
    count_wait(job, before)


def _record_limits(job: JobState, counting: Counting, is_retained: bool) -> None:
    """Record the limits that let C pass substreams that count."""
    if is_retained:
        _record_limit(job, "max_retention_ms", [(s.uncapped_watermark, member(key)) for key, s in counting])
    for limit in POLICY_LIMITS:
        lagged = [(s.policy_state.lagged, member(key)) for key, s in counting if s.policy.limit == limit]
        _record_limit(job, limit, lagged)


def _record_limit(job: JobState, limit: str, watermarks: list[tuple[int | None, str]]) -> None:
    passed = [item for item in watermarks if above(job.coalesced_watermark, item[0])]
    if passed:
        passed.sort(key=lambda item: (by_value(item[0]), item[1].encode()))
        job.limits[limit] += 1
        job.limits_passed += ({"limit": limit, **named(name for _, name in passed)},)


def _record_all_idle(job: JobState, was_all_idle: bool) -> None:
    if job.all_idle == was_all_idle:
        return
    if was_all_idle:
        job.journal.write(job.now_ms, Kind.NOT_ALL_IDLE)
    elif not job.substreams or any(not substream.done for substream in job.substreams.values()):
        job.journal.write(job.now_ms, Kind.ALL_IDLE)
