"""The status of a job and of all jobs, and what holds the watermark of a job."""

import logging
from dataclasses import dataclass

from pydantic import Field, ValidationError

from tidegate.domain.completeness import RowCounts
from tidegate.domain.config import JobConfig
from tidegate.domain.errors import StateDamaged
from tidegate.domain.frames import FrameBounds, Prediction
from tidegate.domain.job import COUNTED_STATES, Hold
from tidegate.domain.limits import ArrivalDelay, PassedByLimit
from tidegate.domain.offsets import OffsetsStatus
from tidegate.domain.views import ExplainedHolder, Health, explain
from tidegate.domain.what_if import WhatIfArrivals, WhatIfSkew, what_if_arrivals
from tidegate.store.replies import Learned, Snapshot, Status
from tidegate.views.config import ConfigDocument, stored_config
from tidegate.views.reader import Reader
from tidegate.views.types import STORED, Answer, attributes
from tidegate.views.watermark import WatermarkState

log = logging.getLogger(__name__)


class SubstreamCounts(Answer):
    """Numbers of substreams by state."""

    active: int = Field(description="Active and blocked substreams, which count towards the minimum.", examples=[17])
    skewed: int = Field(
        description="Substreams too far behind the median (`max_skew_ms`), which do not hold the watermark until they "
        "catch up.",
        examples=[0],
    )
    idle: int = Field(description="Idle substreams, which do not count towards the minimum.", examples=[2])
    done: int = Field(description="Substreams that have ended.", examples=[0])
    all_idle: bool = Field(description="Whether no substream is active.", examples=[False])

    @property
    def known(self) -> int:
        """Total number of substreams."""
        return sum(getattr(self, state) for state in COUNTED_STATES)


class JobStatus(WatermarkState):
    """The status of a job."""

    health: Health = Field(
        description="State of the job in one word. `stale`: no client contact for `TIDEGATE_STALE_AFTER_S` and no "
        "open batch. `held`: held for longer than a minute, or by an operator, a missing query or a blocked substream. "
        "`lagging`: the watermark is more than `max_lag_ms` behind processing time. `no_watermark`: the job has no "
        "watermark yet. `running`: the watermark follows the data. `all_idle`: no substream is active. `empty`: no "
        "reports yet. `complete`: the input has ended.",
        examples=["running"],
    )
    config: ConfigDocument = Field(description="Configuration of the job.")
    revision: int = Field(description="Revision of the configuration.", examples=[1])
    created_ms: int = Field(description="Processing time at which the job was created.", examples=[1357527600000])
    max_event_time: int | None = Field(
        description="Highest event time of the job's substreams, including done ones.", examples=[1357556400000]
    )
    max_watermark: int | None = Field(
        description="Highest watermark of the job's substreams, including done ones.", examples=[1357554600000]
    )
    substreams: SubstreamCounts = Field(description="Numbers of substreams by state.")
    rows: RowCounts = Field(description="Numbers of committed rows by row class.")
    holds: list[Hold] = Field(description="Holds that are in force.")
    missing_queries: list[str] = Field(description="Expected queries without substreams.", examples=[["arrivals"]])
    limits: dict[str, int] = Field(
        description="Number of times each limit has acted, by name.", examples=[{"idle_timeout_ms": 3}]
    )
    future_rows: int = Field(
        description="Ignored rows and reports, whose event times are too far in the future.", examples=[0]
    )
    tokens_ignored: int = Field(
        description="Number of invalid watermark tokens, which the coordinator ignored.", examples=[0]
    )
    emissions: int = Field(description="Number of emissions, including those before a reset.", examples=[412])
    throttled: int = Field(
        description="Number of advances that the throttle withheld, including those before a reset.", examples=[1208]
    )
    last_contact_ms: int | None = Field(
        description="Processing time of the last client contact. Null before the first contact.",
        examples=[1357554655000],
    )
    open_batches: int = Field(description="Number of open batches.", examples=[1])
    arrivals: ArrivalDelay | None = Field(
        description="The arrival delay that the job learns for `arrival_target`. Null without this setting."
    )


class JobList(Answer):
    """A page of the list of jobs, sorted by name."""

    jobs: list[JobStatus] = Field(description="Jobs, sorted by name.")
    next: str | None = Field(description="Value of `after` for the next page. Null on the last page.", examples=[None])
    unreadable: list[str] = Field(
        description="Names of further jobs of the page, whose stored state cannot be read. A call about such a job "
        "answers `state_damaged`.",
        examples=[[]],
    )


def job_status(reader: Reader, job: str, status: Status) -> JobStatus:
    """Return the status of a job as an answer.

    Raises:
        StateDamaged: If its configuration is not valid.
    """
    summary = status.summary
    try:
        return JobStatus.model_validate(
            {
                **attributes(status),
                **attributes(summary),
                **reader.members(job, status.state),
                "health": status.health(reader.stale_after_ms),
                "substreams": SubstreamCounts.model_validate(summary),
                "rows": summary.counts,
            },
            context=STORED,
        )
    except ValidationError as error:
        raise StateDamaged from error


async def read_status(reader: Reader, job: str) -> JobStatus:
    """Return the status of a job.

    Raises:
        JobNotFound: If the job does not exist.
        JobDeleted: If the job was deleted.
    """
    return job_status(reader, job, await reader.store.reads.status(job))


async def read_job_list(reader: Reader, prefix: str, after: str, most: int) -> JobList:
    """Return a page of the jobs whose names start with ``prefix`` and sort after ``after``."""
    names = [job for job in await reader.store.reads.jobs() if job > after and job.startswith(prefix)]
    jobs: list[JobStatus] = []
    unreadable: list[str] = []
    # A job that is deleted between the two reads is missing from the second read. The loop then reads further jobs.
    while names and len(jobs) <= most:
        size = most + 1 - len(jobs)  # one more than a page, to detect whether another page follows
        for job, status in (await reader.store.reads.statuses(names[:size])).items():
            try:
                if isinstance(status, Exception):
                    raise StateDamaged from status
                jobs.append(job_status(reader, job, status))
            except StateDamaged as error:
                log.error("Cannot read job %s.", job, exc_info=error)
                unreadable.append(job)
        names = names[size:]
    following = jobs[most - 1].job if len(jobs) > most else None
    if following is not None:
        unreadable = [job for job in unreadable if job < following]
    return JobList(jobs=jobs[:most], next=following, unreadable=unreadable)


class Explanation(WatermarkState):
    """The holders of a watermark, and the next step of the throttle."""

    holders: list[ExplainedHolder] = Field(
        description="Holders. The first holder holds the watermark now. Each further holder would hold it without the "
        "holders before it in the list. Empty if the watermark has no holder."
    )
    offsets: dict[str, OffsetsStatus] = Field(
        description="How far the queries of the holders have read the partitions of Kafka, by query. Queries that have "
        "not told their offsets are absent.",
        examples=[{}],
    )
    passed: list[PassedByLimit] = Field(
        description="Substreams that count, but do not hold the watermark because of `max_skew_ms` or "
        "`arrival_target`, by limit. Limits without such substreams are absent."
    )
    frame: FrameBounds | None = Field(
        description="The first frame that is not finished. Null if the job declares no frames, has no watermark yet, "
        "or is complete."
    )
    prediction: Prediction | None = Field(
        description="When this frame will be complete. Null if there is no such frame, or if nothing is known."
    )
    what_if_max_skew: WhatIfSkew | None = Field(
        description="What the job would do now under the limit in `what_if_max_skew_ms`. Null without it."
    )
    what_if_arrival_target: WhatIfArrivals | None = Field(
        description="What the target in `what_if_arrival_target` would have done in the recorded past. Null without "
        "it, or if the job declares no frames."
    )
    next_step: int | None = Field(
        description="Value that the merged watermark must reach before the coalesced watermark moves. Null if any "
        "advance moves it.",
        examples=[1357556400000],
    )


@dataclass(frozen=True)
class WhatIf:
    """Settings whose effect an explanation includes; None: not asked.

    Attributes:
        max_skew_ms: Another limit on skew.
        arrival_target: Another target.
    """

    max_skew_ms: int | None = None
    arrival_target: float | None = None


NOT_ASKED = WhatIf()


async def read_explanation(reader: Reader, job: str, most: int, what_if: WhatIf = NOT_ASKED) -> Explanation:
    """Return the explanation of a watermark, with its first ``most`` holders.

    Raises:
        JobNotFound: If the job does not exist.
        JobDeleted: If the job was deleted.
    """
    has_target = what_if.arrival_target is not None
    snapshot = await reader.store.reads.held(job, most, what_if_skew_ms=what_if.max_skew_ms, what_if_target=has_target)
    needs_learned = snapshot.frame is not None or has_target
    learned = await reader.store.reads.learned(job) if needs_learned else None
    return explanation_of(reader, job, snapshot, learned, most, what_if)


def explanation_of(
    reader: Reader, job: str, snapshot: Snapshot, learned: Learned | None, most: int, what_if: WhatIf = NOT_ASKED
) -> Explanation:
    """Return the explanation of a job's watermark from a snapshot of the job.

    Args:
        reader: Reader that issues the watermark token.
        job: The job.
        snapshot: The snapshot.
        learned: What predicts when the first open frame will be complete; None without frames.
        most: Maximum number of holders.
        what_if: Settings whose effect the explanation includes; the snapshot was read for them.
    """
    predictor = None if learned is None else learned.predictor()
    state = snapshot.job(stored_config(snapshot.config))
    explanation = explain(state, state.now_ms, most)
    return Explanation(
        **reader.members(job, snapshot.state),
        holders=explanation.holders,
        offsets={
            name: status
            for name in dict.fromkeys(holder.query for holder in explanation.holders)
            if name in state.queries and (status := OffsetsStatus.of(state.queries[name].offsets))
        },
        passed=snapshot.passed,
        frame=snapshot.frame,
        prediction=predictor.predictions([snapshot.frame.end])[0] if predictor and snapshot.frame else None,
        what_if_max_skew=None if what_if.max_skew_ms is None else snapshot.what_if_skew(what_if.max_skew_ms),
        what_if_arrival_target=_what_if_arrivals(state.config, snapshot, learned, what_if.arrival_target),
        next_step=explanation.next_step,
    )


def _what_if_arrivals(
    config: JobConfig, snapshot: Snapshot, learned: Learned | None, target: float | None
) -> WhatIfArrivals | None:
    if target is None:
        return None
    arrivals, proven_ms = snapshot.arrivals
    return what_if_arrivals(arrivals, proven_ms, config, target, [] if learned is None else learned.completions)
