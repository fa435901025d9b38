"""How far rows come out of order, and what waiting for them costs."""

from typing import Self

from pydantic import Field

from tidegate.api.schemas.jobs import WatermarkRecord
from tidegate.api.schemas.types import Record
from tidegate.domain.completeness import Point


class QuantileRecord(Record):
    """Of the rows, a `share` came no more than `delay_ms` behind."""

    share: float
    delay_ms: int


class PointRecord(Record):
    """A lag, what it gives and what it costs: the share of rows on time, and by how much the highest event time is
    beyond the end of a window, on average, when that comes out; null where nothing is known of that yet.
    """

    lag_ms: int
    completeness: float
    latency_ms: int | None

    @classmethod
    def of(cls, point: Point) -> Self:
        return cls(lag_ms=point.lag, completeness=point.completeness, latency_ms=point.latency)


class CompletenessRecord(WatermarkRecord):
    """How far rows come out of order, of the job as a whole or of one substream.

    Of a substream, `quantiles` and `points` are of how far rows come behind its top. Of the job, they are of how far
    rows come behind where its watermark would be under no lag, with which it waits for its slowest substream.

    - `rows`: how many they stand for; what was seen long ago fades. 0: nobody reports delays.
    - `lag_ms`: the lag in force, of the job that of the substream it waits for; null where none is known.
    - `wait_ms`: what waiting for the slowest substream, and moving in steps, costs beside the lag.
    - `target`: as asked for, or that of the policy; `recommended_lag_ms`: the least lag that reaches it.
    - `achieved`: the share of the rows that were not late, of all that commits accounted for.
    """

    rows: int
    relative_error: float = Field(description="of a delay; that of a lag may be twice as large")
    lag_ms: int | None
    wait_ms: int | None
    target: float | None
    recommended_lag_ms: int | None
    achieved: float | None
    quantiles: list[QuantileRecord]
    points: list[PointRecord]
