"""Explanations: the holders of the watermark, their deadlines, and the watermark without them.

An explanation removes each holder from a copy of the job, by the same command that an operator would use. The
explanation therefore shows the watermarks after this command.
"""

from collections.abc import Iterator
from copy import copy, deepcopy
from dataclasses import dataclass

from tidegate.domain import commands, schedule
from tidegate.domain.journal import Journal
from tidegate.domain.names import DIRECT, PLACEHOLDER
from tidegate.domain.numbers import above
from tidegate.domain.results import Deadline, Holder, WatermarkState
from tidegate.domain.state import JobState, Substream

MAX_HOLDERS = 10


@dataclass(frozen=True, slots=True)
class ExplainedHolder:
    """A holder, its deadlines (earliest first), and the watermarks without this holder and all earlier holders."""

    holder: Holder
    until: tuple[Deadline, ...]
    coalesced_watermark_without: int | None
    watermark_without: int | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """The current watermark and its holders in order.

    ``next_step`` is the merged watermark from which the throttle lets C move. None: C has no value, or C follows every
    advance.
    """

    state: WatermarkState
    holders: tuple[ExplainedHolder, ...]
    next_step: int | None


def explain(job: JobState, now_ms: int, limit: int = 3) -> Explanation:
    """Explain a job at ``now_ms`` by its first ``limit`` holders, without changing the job."""
    trial = copy(job)
    trial.journal = Journal()  # the journal is expensive to copy, and no command reads it
    trial = deepcopy(trial)
    state = commands.sweep(trial, now_ms)
    last = trial.coalesced_watermark
    next_step = None if last is None else trial.config.throttle.next_step(last, trial.numbers)
    holders: list[ExplainedHolder] = []
    holder = state.held_by
    while holder is not None and len(holders) < min(limit, MAX_HOLDERS):
        until = tuple(sorted(_until(trial, holder), key=lambda one: (one.at_ms, one.limit)))
        without = remove(trial, holder, now_ms)
        holders.append(ExplainedHolder(holder, until, without.coalesced_watermark, without.watermark))
        holder = without.held_by
    return Explanation(state, tuple(holders), next_step)


def remove(job: JobState, holder: Holder, now_ms: int) -> WatermarkState:
    """Remove a holder: evict a substream, retire an expected query, abandon an open batch, or release a hold."""
    match holder.reason:
        case "hold":
            assert holder.hold is not None
            return commands.release(job, holder.hold, now_ms)
        case "open_batch":
            return commands.retire(job, holder.query, holder.query, now_ms).state
        case "missing_query":
            return commands.retire(job, holder.query, None, now_ms).state
        case _:
            assert holder.substream is not None
            return commands.evict(job, holder.query, [holder.substream], now_ms).state


def _until(job: JobState, holder: Holder) -> Iterator[Deadline]:
    if holder.reason == "hold":
        assert holder.hold is not None
        expires_ms = job.holds[holder.hold].expires_ms
        if expires_ms is not None:
            yield Deadline("expires_ms", expires_ms)
    elif holder.reason == "open_batch":
        yield from schedule.batch_deadlines(job, holder.query)
    else:
        substream = job.substreams[holder.query, holder.substream or PLACEHOLDER]
        if holder.last_event_ms is not None:
            yield from _limits_of(job, holder.query, substream, holder.last_event_ms)
        yield from schedule.query_deadlines(job, holder.query)
        forced_ms = _forced_ms(job)
        if forced_ms is not None:
            yield Deadline("max_retention_ms", forced_ms)


def _limits_of(job: JobState, query: str, substream: Substream, last_event_ms: int) -> Iterator[Deadline]:
    idle_timeout_ms = job.config.idle_timeout_ms
    if idle_timeout_ms is not None:
        yield Deadline("idle_timeout_ms", last_event_ms + idle_timeout_ms, needs_query_report=query != DIRECT)
    if substream.policy.limit is not None:
        at = job.processing_time
        moves_ms = substream.policy_state.next_change_ms(substream.uncapped_watermark, at)
        # Times above numbers.highest are not exact.
        if moves_ms is not None and moves_ms <= job.numbers.highest:
            yield Deadline(substream.policy.limit, max(moves_ms, at.observed_ms + 1) + job.unattended_ms)


def _forced_ms(job: JobState) -> int | None:
    """Return the time at which retention moves C past slow substreams; None if retention does not move C."""
    if job.retention is None:
        return None
    at_ms = job.retention.next_change_ms(lambda value: above(value, job.coalesced_watermark))
    return None if at_ms is None else at_ms + job.unattended_ms
