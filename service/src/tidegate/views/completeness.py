"""The completeness curve of a job or a substream: the share of rows on time by lag."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from tidegate.domain.completeness import RELATIVE_ERROR, RowCounts, Sketch, curve, least_lag
from tidegate.domain.config import FrameThrottle, JobConfig
from tidegate.domain.errors import DomainError, SubstreamNotFound
from tidegate.domain.policies import Policy, TargetCompleteness
from tidegate.domain.values import SubstreamKey
from tidegate.store import replies
from tidegate.views.config import stored_config
from tidegate.views.reader import Reader
from tidegate.views.types import Answer
from tidegate.views.watermark import WatermarkState

QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999, 0.9999)


class DelayQuantile(Answer):
    """A quantile of the delays of rows."""

    share: float = Field(description="Share of the measured rows.", examples=[0.99])
    delay_ms: int = Field(
        description="Delay in milliseconds that this share of rows does not exceed.", examples=[2400000]
    )


class CompletenessPoint(Answer):
    """A point of the completeness curve."""

    lag_ms: int = Field(description="Lag in milliseconds.", examples=[1800000])
    completeness: float = Field(description="Share of rows on time under this lag.", examples=[0.9712])
    latency_ms: int | None = Field(
        description="Average distance in milliseconds from the end of a window to the max event time when the window "
        "closes. Null if not yet measured.",
        examples=[2100000],
    )


class Completeness(WatermarkState):
    """Delays of rows, and completeness by lag.

    The delays of a substream are relative to its max event time. The delays of a job are relative to the watermark
    that the job would have without any lag.
    """

    rows: int = Field(description="Weighted number of measured rows. 0 if no report has delays.", examples=[52811])
    relative_error: float = Field(
        description="Relative error of a delay. The error of a lag can be twice as large.", examples=[0.01]
    )
    lag_ms: int | None = Field(
        description="Lag in force, in milliseconds. For a job, the lag of the substream that holds the watermark.",
        examples=[1800000],
    )
    wait_ms: int | None = Field(
        description="Latency in milliseconds in addition to the lag. The slowest substream and the throttle cause it.",
        examples=[300000],
    )
    target: float | None = Field(description="Requested target, or the target of the policy.", examples=[0.99])
    recommended_lag_ms: int | None = Field(
        description="Minimum lag in milliseconds that reaches the target.", examples=[2400000]
    )
    achieved: float | None = Field(
        description="On-time and updated rows, as a share of all committed on-time, updated and late rows.",
        examples=[0.9998],
    )
    quantiles: list[DelayQuantile] = Field(description="Quantiles of the delays.")
    points: list[CompletenessPoint] = Field(description="The completeness curve, sorted by lag.")


class FrameInForce(DomainError):
    """Raised when a request has a window size, but the frame of the job determines the windows."""

    code = "frame_in_force"
    text = "{field}: the throttle of this job has a frame, which sets the window; omit {field}."
    fields = ("field",)


@dataclass(frozen=True, slots=True)
class CurveSelection:
    """The completeness curve to compute.

    Attributes:
        substream: The substream; None for the whole job.
        window_ms: Size of the windows by which rows are classified; 0 for classification by row.
        target: Share of rows on time for which to recommend a lag; None for the target of the policy.
        lags: Lags of the curve in milliseconds; None for all lags at which the curve changes.
    """

    substream: SubstreamKey | None = None
    window_ms: int = 0
    target: float | None = None
    lags: Collection[int] | None = None


async def read_completeness(reader: Reader, job: str, selection: CurveSelection) -> Completeness:
    """Return the completeness of a job or of a substream.

    Raises:
        FrameInForce: If ``selection`` has a window, but the job has a frame.
        JobNotFound: If the job does not exist.
        JobDeleted: If the job was deleted.
        SubstreamNotFound: If the substream is unknown.
    """
    key = selection.substream
    status, delays = await reader.store.reads.delays(job, None if key is None else [key])
    if key is None:
        return completeness_of_job(reader, job, status, delays, selection)
    config = _checked_config(status, selection)
    rows = (await reader.store.reads.substreams(job, [key])).rows
    if key not in delays.substreams or not rows:
        raise SubstreamNotFound(key[0], [key[1]])
    lag, sketch = delays.substreams[key]
    members = _members(selection, sketch, delays.statistics.wait, config.policy_of(key[1]), rows[0].rows)
    return Completeness(**reader.members(job, delays.state), lag_ms=lag, **members)


def completeness_of_job(
    reader: Reader, job: str, status: replies.Status, delays: replies.Delays, selection: CurveSelection
) -> Completeness:
    """Return the completeness of a job.

    Args:
        reader: Reader that issues the watermark token.
        job: The job.
        status: Status of the job.
        delays: Delays of the job, and of the substream that holds the watermark.
        selection: The curve to compute.

    Raises:
        FrameInForce: If ``selection`` has a window, but the job has a frame.
    """
    config, merged = _checked_config(status, selection), delays.statistics.merged
    lag = next((lag for lag, _ in delays.substreams.values()), config.policy.initial_lag)
    members = _members(selection, merged, delays.statistics.wait, config.policy, status.summary.counts)
    return Completeness(**reader.members(job, delays.state), lag_ms=lag, **members)


def _checked_config(status: replies.Status, selection: CurveSelection) -> JobConfig:
    config = stored_config(status.config)
    if selection.window_ms and isinstance(config.throttle, FrameThrottle):
        raise FrameInForce("window_ms")
    return config


def _members(
    selection: CurveSelection, sketch: Sketch, wait_ms: int | None, policy: Policy, counts: RowCounts
) -> dict[str, Any]:
    """Return the members of a :class:`Completeness` that derive from the delays and the rows."""
    target, window = selection.target, selection.window_ms
    if target is None and isinstance(policy, TargetCompleteness):
        target = policy.target
    classified = counts.on_time + counts.updated + counts.late
    points = curve(sketch, wait_ms, window, selection.lags) if sketch.weight else ()
    return {
        "rows": round(sketch.rows),
        "relative_error": RELATIVE_ERROR,
        "wait_ms": wait_ms,
        "target": target,
        "recommended_lag_ms": None if target is None or not sketch.weight else least_lag(sketch, target, window),
        "achieved": 1 - counts.late / classified if classified else None,
        "quantiles": [DelayQuantile(share=s, delay_ms=sketch.quantile(s)) for s in QUANTILES if sketch.weight],
        "points": [
            CompletenessPoint(lag_ms=point.lag, completeness=point.completeness, latency_ms=point.latency)
            for point in points
        ],
    }
