"""The completeness curve of a job or a substream: rows on time against lag."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Self

from pydantic import Field

from tidegate.domain import results
from tidegate.domain.completeness import Point, curve, least_lag
from tidegate.domain.config import JobConfig
from tidegate.domain.errors import SubstreamNotFound
from tidegate.domain.names import SubstreamKey
from tidegate.domain.policy import Policy, TargetCompleteness
from tidegate.domain.rows import RowCounts
from tidegate.domain.sketch import RELATIVE_ERROR, Sketch
from tidegate.domain.throttle import FrameThrottle
from tidegate.reads.config import JobDocument
from tidegate.reads.errors import FrameInForce
from tidegate.reads.reader import Reader
from tidegate.reads.types import Record
from tidegate.reads.watermark import WatermarkState

QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999, 0.9999)


class DelayQuantile(Record):
    """A quantile of the delays of rows."""

    share: float = Field(description="Share of the rows.", examples=[0.99])
    delay_ms: int = Field(description="Longest delay of these rows, in milliseconds.", examples=[2400000])


class CompletenessPoint(Record):
    """A point of the completeness curve."""

    lag_ms: int = Field(description="Lag in milliseconds.", examples=[1800000])
    completeness: float = Field(description="Share of rows on time under this lag.", examples=[0.9712])
    latency_ms: int | None = Field(
        description="Average advance of the max event time beyond the end of a window when the window closes. Null: "
        "not measured yet.",
        examples=[2100000],
    )

    @classmethod
    def of(cls, point: Point) -> Self:
        """Return the record of a point of the domain's curve."""
        return cls(lag_ms=point.lag, completeness=point.completeness, latency_ms=point.latency)


class Completeness(WatermarkState):
    """Delays of rows, and the completeness that a lag gives.

    The delays of a substream are relative to its max event time. The delays of a job are relative to the watermark
    that it would have without any lag.
    """

    rows: int = Field(description="Weighted number of measured rows; 0: no report has delays.", examples=[52811])
    relative_error: float = Field(
        description="Relative error of a delay; the error of a lag can be twice as large.", examples=[0.01]
    )
    lag_ms: int | None = Field(
        description="Lag in force; for a job, the lag of the substream that holds it.", examples=[1800000]
    )
    wait_ms: int | None = Field(
        description="Latency beside the lag: waiting for the slowest substream and for the throttle.",
        examples=[300000],
    )
    target: float | None = Field(description="Requested target, or the target of the policy.", examples=[0.99])
    recommended_lag_ms: int | None = Field(description="Least lag that reaches the target.", examples=[2400000])
    achieved: float | None = Field(description="Share of all committed rows that were not late.", examples=[0.9998])
    quantiles: list[DelayQuantile] = Field(description="Quantiles of the delays.")
    points: list[CompletenessPoint] = Field(description="The completeness curve, by lag.")


@dataclass(frozen=True, slots=True)
class CurveSelection:
    """Which completeness curve to compute.

    Attributes:
        substream: The substream; None for the whole job.
        window_ms: Size of the windows by which rows are classified; 0 for classification by row.
        target: Share of rows on time to recommend a lag for; None for the target of the policy.
        lags: Lags of the curve in milliseconds; None for all lags at which it changes.
    """

    substream: SubstreamKey | None = None
    window_ms: int = 0
    target: float | None = None
    lags: Collection[int] | None = None


@dataclass(frozen=True, slots=True)
class _Measured:
    """Delays of a job or of one substream, and what belongs to them."""

    state: results.WatermarkState
    sketch: Sketch
    wait_ms: int | None
    lag_ms: int | None
    policy: Policy
    counts: RowCounts


async def read_completeness(reader: Reader, job: str, selection: CurveSelection) -> Completeness:
    """Return the completeness of a job or of a substream.

    Raises:
        FrameInForce: If a window is given for a job with a frame.
        JobNotFound: If the job does not exist.
        JobDeleted: If it was deleted.
        SubstreamNotFound: If the substream is not known.
    """
    status = await reader.store.reads.status(job)
    config = JobDocument.model_validate(status.config).config()
    if selection.window_ms and isinstance(config.throttle, FrameThrottle):
        raise FrameInForce
    if selection.substream is None:
        held_by = status.state.held_by
        slowest = None if held_by is None or held_by.substream is None else (held_by.query, held_by.substream)
        measured = await _measured_of_job(reader, job, config, slowest, status.summary.counts)
    else:
        measured = await _measured_of_substream(reader, job, config, selection.substream)
    return _completeness(reader, job, measured, selection)


async def _measured_of_job(
    reader: Reader, job: str, config: JobConfig, slowest: SubstreamKey | None, counts: RowCounts
) -> _Measured:
    delays = await reader.store.reads.delays(job, [slowest] if slowest else [])
    known = delays.substreams.get(slowest) if slowest else None
    lag = config.policy.initial_lag if known is None else known[0]
    return _Measured(delays.state, delays.statistics.merged, delays.statistics.wait, lag, config.policy, counts)


async def _measured_of_substream(reader: Reader, job: str, config: JobConfig, key: SubstreamKey) -> _Measured:
    delays = await reader.store.reads.delays(job, [key])
    rows = (await reader.store.reads.substreams(job, [key])).rows
    if key not in delays.substreams or not rows:
        raise SubstreamNotFound(key[0], [key[1]])
    lag, sketch = delays.substreams[key]
    return _Measured(delays.state, sketch, delays.statistics.wait, lag, config.policy_of(key[1]), rows[0].counts)


def _completeness(reader: Reader, job: str, measured: _Measured, selection: CurveSelection) -> Completeness:
    sketch, counts, target, window = measured.sketch, measured.counts, selection.target, selection.window_ms
    if target is None and isinstance(measured.policy, TargetCompleteness):
        target = measured.policy.target
    classified = counts.on_time + counts.updated + counts.late
    points = curve(sketch, measured.wait_ms, window, selection.lags) if sketch.weight else ()
    return Completeness(
        **reader.members(job, measured.state),
        rows=round(sketch.rows),
        relative_error=RELATIVE_ERROR,
        lag_ms=measured.lag_ms,
        wait_ms=measured.wait_ms,
        target=target,
        recommended_lag_ms=None if target is None or not sketch.weight else least_lag(sketch, target, window),
        achieved=1 - counts.late / classified if classified else None,
        quantiles=[DelayQuantile(share=s, delay_ms=sketch.quantile(s)) for s in QUANTILES if sketch.weight],
        points=[CompletenessPoint.of(point) for point in points],
    )
