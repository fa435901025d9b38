"""The status of a job, and of all jobs."""

from collections.abc import Mapping

from pydantic import Field

from tidegate.domain.health import Health, health
from tidegate.reads.config import JobDocument
from tidegate.reads.reader import Reader
from tidegate.reads.types import Record
from tidegate.reads.watermark import WatermarkState
from tidegate.store.reads import Status

PAGE_MARGIN = 1
"""Jobs that are read beyond a page of the list, to tell whether another page follows."""


class RowCounts(Record):
    """Numbers of committed rows by row class."""

    on_time: int = Field(description="Rows at or above the pinned watermark of their batch.", examples=[301204])
    updated: int = Field(description="On-time rows that changed a result that was already written.", examples=[118])
    late: int = Field(description="Rows below the pinned watermark of their batch.", examples=[57])
    null_event_time: int = Field(description="Rows without an event time.", examples=[0])
    future: int = Field(description="Rows with an event time too far in the future.", examples=[0])


class SubstreamCounts(Record):
    """Numbers of substreams by state."""

    active: int = Field(description="Substreams that count towards the minimum, blocked ones included.", examples=[17])
    idle: int = Field(description="Substreams that are excluded because they are idle.", examples=[2])
    done: int = Field(description="Substreams that have ended.", examples=[0])
    all_idle: bool = Field(description="Whether the job has substreams, and none is active.", examples=[False])


class Hold(Record):
    """A hold by an operator."""

    hold: str = Field(description="Name of the hold.", examples=["audit"])
    at_most: int = Field(description="The watermark stays at or below this value.", examples=[1357552800000])
    expires_ms: int | None = Field(
        description="Processing time at which the hold ends. Null: when it is released.", examples=[1357561860000]
    )
    reason: str = Field(description="Reason that the operator gave.", examples=["Audit of January"])


class JobStatus(WatermarkState):
    """The status of a job."""

    health: Health = Field(
        description="State of the job in one word. `stale`: no client contact for a long time and no open batch. "
        "`held`: held for longer than a minute, or by an operator, a missing query or a blocked substream. "
        "`no_watermark`: there is no watermark yet. `running`: the watermark follows the data. `all_idle`: no "
        "substream is active. `empty`: no report yet. `complete`: the input has ended.",
        examples=["running"],
    )
    config: JobDocument = Field(description="Configuration of the job.")
    revision: int = Field(description="Revision of the configuration.", examples=[1])
    created_ms: int = Field(description="Processing time at which the job was created.", examples=[1357527600000])
    max_event_time: int | None = Field(description="Highest event time of the job.", examples=[1357556400000])
    max_watermark: int | None = Field(
        description="Highest substream watermark that ever counted.", examples=[1357554600000]
    )
    substreams: SubstreamCounts = Field(description="Numbers of substreams by state.")
    rows: RowCounts = Field(description="Numbers of committed rows by row class.")
    holds: list[Hold] = Field(description="Holds that are in force.")
    missing_queries: list[str] = Field(description="Expected queries without substreams.", examples=[["arrivals"]])
    limits: dict[str, int] = Field(
        description="Times each limit has acted, by its name.", examples=[{"idle_timeout_ms": 3}]
    )
    future_rows: int = Field(description="Rows and reports ignored as too far in the future.", examples=[0])
    tokens_ignored: int = Field(description="Invalid watermark tokens.", examples=[0])
    emissions: int = Field(description="Times the watermark moved. A reset does not clear it.", examples=[412])
    throttled: int = Field(
        description="Times the throttle withheld an advance. A reset does not clear it.", examples=[1208]
    )
    last_contact_ms: int | None = Field(
        description="Processing time of the last contact with a client. Null: never.", examples=[1357554655000]
    )
    open_batches: int = Field(description="Number of open batches.", examples=[1])


class JobList(Record):
    """A page of the list of jobs, by name."""

    jobs: list[JobStatus] = Field(description="Jobs in the order of their names.")
    next: str | None = Field(description="Value of `after` for the next page. Null: this is the last.", examples=[None])


def job_status(reader: Reader, job: str, status: Status) -> JobStatus:
    """Return the status of a job as a record."""
    summary = status.summary
    return JobStatus.model_validate(
        {
            **reader.members(job, status.state),
            "health": health(status.state, summary, reader.stale_after_ms),
            "config": status.config,
            "revision": status.revision,
            "created_ms": status.created_ms,
            "max_event_time": summary.max_event_time,
            "max_watermark": summary.max_watermark,
            "substreams": SubstreamCounts.model_validate(summary),
            "rows": summary.counts,
            "holds": summary.holds,
            "missing_queries": summary.missing_queries,
            "limits": summary.limits,
            "future_rows": summary.future_rows,
            "tokens_ignored": summary.tokens_ignored,
            "emissions": summary.emissions,
            "throttled": summary.throttled,
            "last_contact_ms": summary.last_contact_ms,
            "open_batches": summary.open_batches,
        }
    )


async def read_status(reader: Reader, job: str) -> JobStatus:
    """Return the status of a job.

    Raises:
        JobNotFound: If the job does not exist.
        JobDeleted: If it was deleted.
    """
    return job_status(reader, job, await reader.store.reads.status(job))


async def read_job_list(reader: Reader, prefix: str, after: str, limit: int) -> JobList:
    """Return a page of the jobs whose names begin with ``prefix`` and come after ``after``."""
    names = [job for job in await reader.store.reads.jobs() if job > after and job.startswith(prefix)]
    jobs: list[JobStatus] = []
    # Jobs that are deleted between the two reads are missing from the second, so one read may not fill the page.
    while names and len(jobs) <= limit:
        size = limit + PAGE_MARGIN - len(jobs)
        statuses = await reader.store.reads.statuses(names[:size])
        names = names[size:]
        jobs += [job_status(reader, job, status) for job, status in _readable(statuses).items()]
    return JobList(jobs=jobs[:limit], next=jobs[limit - 1].job if len(jobs) > limit else None)


def _readable(statuses: Mapping[str, Status | Exception]) -> dict[str, Status]:
    readable: dict[str, Status] = {}
    for job, status in statuses.items():
        if isinstance(status, Exception):
            raise status
        readable[job] = status
    return readable
