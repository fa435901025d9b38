"""The clock of a job, which never goes back. Observed time excludes outages: the time in which no coordinator ran."""

from dataclasses import replace

from tidegate.domain.names import DIRECT
from tidegate.domain.numbers import highest
from tidegate.domain.schedule import next_change_ms
from tidegate.domain.state import JobState, Query


def advance(job: JobState, now_ms: int) -> None:
    """Advance the clock of the job; ignore a time in the past. An outage extends the holds that expire."""
    lost_ms = outage_until(job, now_ms)
    if lost_ms:
        job.unattended_ms += lost_ms
        job.journal.write(now_ms, "unattended", unattended_ms=lost_ms)
        for hold in list(job.holds.values()):
            if hold.expires_ms is not None:
                job.holds[hold.hold] = replace(hold, expires_ms=hold.expires_ms + lost_ms)
    job.now_ms = max(job.now_ms, now_ms)


def outage_until(job: JobState, now_ms: int) -> int:
    """Return the duration of an outage that a command at a time would detect; 0 if it would detect none."""
    gap_ms = now_ms - job.now_ms
    is_outage = job.unattended_after_ms is not None and gap_ms > job.unattended_after_ms
    # A job with a next change is swept regularly, so a longer gap shows that no coordinator ran.
    return gap_ms if is_outage and next_change_ms(job) is not None else 0


def outage_ms(job: JobState, query: str) -> int:
    """Return the total outage time of a query, or of the job for reports without batches."""
    if query == DIRECT:
        return job.unattended_ms
    return job.queries[query].outage_ms if query in job.queries else 0


def observed_time(job: JobState, query: str, now_ms: int | None = None) -> int:
    """Convert a processing time (default: now) to the observed time of a query.

    A query may report an outage late. The result is therefore at least the idle clock of the query.
    """
    observed_ms = (job.now_ms if now_ms is None else now_ms) - outage_ms(job, query)
    idle_clock_ms = job.queries[query].idle_clock_ms if query in job.queries else None
    return observed_ms if idle_clock_ms is None else max(observed_ms, idle_clock_ms)


def add_outage(query: Query, waited_ms: int) -> None:
    """Record how long the current run has waited for the coordinator since its start."""
    query.outage_ms += max(0, waited_ms - query.waited_ms)
    query.waited_ms = max(waited_ms, query.waited_ms)


def observe_until(query: Query, time_ms: int) -> None:
    """Record that the query has processed all input up to a processing time."""
    query.idle_clock_ms = highest(time_ms - query.outage_ms, query.idle_clock_ms)
