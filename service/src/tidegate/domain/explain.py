"""Why a watermark is where it is: who holds it, until when at most, and where it would be without them.

All of it is found by trial, on a copy of the job: what would be without a holder is what the command gives that takes
it away. So an explanation cannot say anything else than what would happen.
"""

from copy import copy, deepcopy
from dataclasses import dataclass

from tidegate.domain.job import JobMachine
from tidegate.domain.journal import Journal
from tidegate.domain.numbers import above
from tidegate.domain.records import Answer, Holder
from tidegate.domain.state import DIRECT
from tidegate.domain.substream import PLACEHOLDER, Substream
from tidegate.domain.throttle import FrameThrottle, MinStepThrottle

MOST_HOLDERS = 10


@dataclass(frozen=True, slots=True)
class Until:
    """When a limit of the rules lets the watermark pass a holder, if nothing comes of it until then: not
    before ``at_ms``, in processing time; later, where it needs a word of the holder's query: ``needs_query_report``.
    """

    limit: str
    at_ms: int
    needs_query_report: bool = False


@dataclass(frozen=True, slots=True)
class Held:
    """A holder, and what would be without it and those before it.

    ``until``: the limits that will let the watermark pass it, the first one first.
    """

    held_by: Holder
    until: tuple[Until, ...]
    coalesced_watermark_without: int | None
    watermark_without: int | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """``answer``: the job now. ``held``: its holders, each with what would be without it. ``next_step``: what the
    substreams must have come to before the throttle lets the watermark move at all; None where any step will do.
    """

    answer: Answer
    held: tuple[Held, ...]
    next_step: int | None


def explain(job: JobMachine, now_ms: int, most: int = 3) -> Explanation:
    """Explains a job as it is at ``now_ms``, by its first ``most`` holders. The job itself is not changed."""
    trial = copy(job)
    trial.journal = Journal()  # which may be long, and has no say in it
    trial = deepcopy(trial)
    answer = trial.sweep(now_ms)
    next_step = _next_step(trial)
    held: list[Held] = []
    found = answer.held_by
    while found is not None and len(held) < min(most, MOST_HOLDERS):
        until = _until(trial, found)
        without = take_away(trial, found, now_ms)
        held.append(Held(found, until, without.coalesced_watermark, without.watermark))
        found = without.held_by
    return Explanation(answer, tuple(held), next_step)


def take_away(job: JobMachine, held_by: Holder, now_ms: int) -> Answer:
    """Carries out the command that takes a holder away: evicting a substream, ending an expected query, giving up an
    open batch, releasing a hold.
    """
    match held_by.reason:
        case "hold":
            assert held_by.hold is not None
            return job.release(held_by.hold, now_ms)
        case "open_batch":
            return job.retire(held_by.query, held_by.query, now_ms).answer
        case "missing_query":
            return job.retire(held_by.query, None, now_ms).answer
        case _:
            assert held_by.substream is not None
            return job.evict(held_by.query, [held_by.substream], now_ms).answer


def _next_step(job: JobMachine) -> int | None:
    last, throttle, numbers = job.coalescer.coalesced_watermark, job.config.throttle, job.numbers
    if last is None:
        return None
    match throttle:
        case MinStepThrottle():
            return numbers.plus(last, throttle.min_step)
        case FrameThrottle():
            floor = throttle.frame.floor(last, numbers)
            return numbers.plus(last if floor is None else floor, throttle.frame.slide)
        case _:
            return None


def _until(job: JobMachine, held_by: Holder) -> tuple[Until, ...]:
    """Which limits a holder will meet."""
    until: list[Until] = []
    rules = job.config
    if held_by.reason == "hold":
        assert held_by.hold is not None
        expires_ms = job.holds[held_by.hold].expires_ms
        if expires_ms is not None:
            until.append(Until("expires_ms", expires_ms))
    elif held_by.reason == "open_batch":
        query = job.queries[held_by.query]
        if rules.max_batch_hold_ms is not None:
            until.append(
                Until("max_batch_hold_ms", query.begun_observed_ms + job.unattended_ms + rules.max_batch_hold_ms)
            )
    else:
        substream = job.substreams[held_by.query, held_by.substream or PLACEHOLDER]
        if held_by.last_event_ms is not None:
            until += _limits_of(job, held_by.query, substream, held_by.last_event_ms)
        contact = job.contacts.get(held_by.query)
        if rules.query_timeout_ms is not None and contact is not None:
            until.append(Until("query_timeout_ms", contact + job.unattended_ms + rules.query_timeout_ms))
        forced_ms = _forced_ms(job)
        if forced_ms is not None:
            until.append(Until("max_retention_ms", forced_ms))
    return tuple(sorted(until, key=lambda one: (one.at_ms, one.limit)))


def _limits_of(job: JobMachine, query: str, substream: Substream, last_event_ms: int) -> list[Until]:
    found = []
    idle_ms = job.config.idle_timeout_ms
    if idle_ms is not None:
        found.append(Until("idle_timeout_ms", last_event_ms + idle_ms, needs_query_report=query != DIRECT))
    policy = substream.policy
    if policy.limit is not None:
        moves_ms = substream.state_of_policy.next_change_ms(substream.reading, job.moment)
        # Times above numbers.highest are not exact.
        if moves_ms is not None and moves_ms <= job.numbers.highest:
            found.append(Until(policy.limit, max(moves_ms, job.moment.observed_ms + 1) + job.unattended_ms))
    return found


def _forced_ms(job: JobMachine) -> int | None:
    """When retention moves C, whoever holds it."""
    retention, coalesced_watermark = job.coalescer.retention, job.coalescer.coalesced_watermark
    if retention is None:
        return None
    at_ms = retention.next_change_ms(lambda value: above(value, coalesced_watermark))
    return None if at_ms is None else at_ms + job.unattended_ms
