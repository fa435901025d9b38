"""The configuration of a job: policies, throttle, limits."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from tidegate.domain.config import DELAY_HALF_LIFE_MS, MAX_EXPECTED_QUERIES, MAX_OVERRIDES, JobConfig, Override
from tidegate.domain.frame import Frame
from tidegate.domain.policy import (
    LimitingLag,
    LimitingLagAndDelay,
    LimitingLagAndLull,
    LimitingTimestampAndWallClockLag,
    Policy,
    Reported,
    TargetCompleteness,
)
from tidegate.domain.policy.target_completeness import HIGHEST_TARGET, LOWEST_TARGET
from tidegate.domain.throttle import FrameThrottle, MinStepThrottle, NoThrottle, Throttle
from tidegate.reads.types import DurationMs, Id, PositiveMs, Request, Text

DAY_MS = 24 * 3_600_000


class LimitingLagDocument(Request):
    """A policy with a fixed lag behind the max event time of the substream."""

    type: Literal["limiting_lag"] = Field(description="Kind of the policy.", examples=["limiting_lag"])
    lag_ms: DurationMs = Field(
        description="Distance of the watermark behind the max event time, in milliseconds.", examples=[1800000]
    )

    def policy(self) -> Policy:
        return LimitingLag(self.lag_ms)


class LimitingLagAndDelayDocument(Request):
    """A policy with a fixed lag and a longest delay: the max event time of `max_delay_ms` ago is complete."""

    type: Literal["limiting_lag_and_delay"] = Field(
        description="Kind of the policy.", examples=["limiting_lag_and_delay"]
    )
    lag_ms: DurationMs = Field(
        description="Distance of the watermark behind the max event time, in milliseconds.", examples=[1800000]
    )
    max_delay_ms: PositiveMs = Field(
        description="Processing time after which the watermark reaches an observed max event time.", examples=[3600000]
    )

    def policy(self) -> Policy:
        return LimitingLagAndDelay(self.lag_ms, self.max_delay_ms)


class LimitingLagAndLullDocument(Request):
    """A policy with a fixed lag whose watermark follows the clock after `max_lull_ms` without events."""

    type: Literal["limiting_lag_and_lull"] = Field(
        description="Kind of the policy.", examples=["limiting_lag_and_lull"]
    )
    lag_ms: DurationMs = Field(
        description="Distance of the watermark behind the max event time, in milliseconds.", examples=[1800000]
    )
    max_lull_ms: DurationMs = Field(
        description="Processing time without events after which the watermark follows the clock.", examples=[600000]
    )

    def policy(self) -> Policy:
        return LimitingLagAndLull(self.lag_ms, self.max_lull_ms)


class LimitingTimestampAndWallClockLagDocument(Request):
    """A policy with a lag behind the max event time and another behind the clock; the higher watermark counts."""

    type: Literal["limiting_timestamp_and_wall_clock_lag"] = Field(
        description="Kind of the policy.", examples=["limiting_timestamp_and_wall_clock_lag"]
    )
    timestamp_lag_ms: DurationMs = Field(
        description="Distance behind the max event time, in milliseconds.", examples=[1800000]
    )
    wall_clock_lag_ms: DurationMs = Field(description="Distance behind the clock, in milliseconds.", examples=[7200000])

    def policy(self) -> Policy:
        return LimitingTimestampAndWallClockLag(self.timestamp_lag_ms, self.wall_clock_lag_ms)


class TargetCompletenessDocument(Request):
    """A policy that learns the least lag at which a share of `target` of the rows is on time.

    It learns from the `delays` in reports, for each substream.
    """

    type: Literal["target_completeness"] = Field(description="Kind of the policy.", examples=["target_completeness"])
    target: float = Field(
        strict=True, ge=LOWEST_TARGET, le=HIGHEST_TARGET, description="Share of rows on time.", examples=[0.99]
    )
    cold_start_lag_ms: DurationMs = Field(
        description="Lag until `min_rows` are measured, in milliseconds.", examples=[3600000]
    )
    floor_ms: DurationMs = Field(default=0, description="Least lag, in milliseconds.", examples=[60000])
    ceiling_ms: DurationMs | None = Field(
        default=None, description="Longest lag, in milliseconds. Null: no bound.", examples=[86400000]
    )
    min_rows: int | None = Field(
        default=None,
        strict=True,
        ge=1,
        le=10**9,
        description="Rows of the substream, or of the job, that must be measured before the lag is learned. Null: the "
        "number of which ten rows are expected beyond the target.",
        examples=[1000],
    )

    def policy(self) -> Policy:
        return TargetCompleteness(self.target, self.cold_start_lag_ms, self.floor_ms, self.ceiling_ms, self.min_rows)


class ReportedDocument(Request):
    """A policy for reporters that send watermarks of their own."""

    type: Literal["reported"] = Field(description="Kind of the policy.", examples=["reported"])

    def policy(self) -> Policy:
        return Reported()


PolicyDocument = Annotated[
    LimitingLagDocument
    | LimitingLagAndDelayDocument
    | LimitingLagAndLullDocument
    | LimitingTimestampAndWallClockLagDocument
    | TargetCompletenessDocument
    | ReportedDocument,
    Field(discriminator="type"),
]


class OverrideDocument(Request):
    """A policy for the substreams whose names match a pattern."""

    substreams: Text = Field(
        min_length=1,
        max_length=200,
        description="Pattern of substream names; `*` stands for any characters.",
        examples=["HNL*"],
    )
    policy: PolicyDocument = Field(description="Policy of these substreams.")


class NoThrottleDocument(Request):
    """A throttle that emits every advance."""

    type: Literal["none"] = Field(description="Kind of the throttle.", examples=["none"])

    def throttle(self) -> Throttle:
        return NoThrottle()


class FrameThrottleDocument(Request):
    """A throttle that emits once for each frame, at its end."""

    type: Literal["frame"] = Field(description="Kind of the throttle.", examples=["frame"])
    size_ms: PositiveMs = Field(description="Size of a window in milliseconds.", examples=[3600000])
    slide_ms: PositiveMs | None = Field(
        default=None, description="Distance of window starts in milliseconds. Null: `size_ms`.", examples=[3600000]
    )
    offset_ms: DurationMs = Field(
        default=0, description="Offset of the windows from the epoch in milliseconds.", examples=[0]
    )

    def throttle(self) -> Throttle:
        slide = self.size_ms if self.slide_ms is None else self.slide_ms
        return FrameThrottle(Frame(self.size_ms, slide, self.offset_ms))


class MinStepThrottleDocument(Request):
    """A throttle that emits when the watermark has advanced by a minimum step."""

    type: Literal["min_step"] = Field(description="Kind of the throttle.", examples=["min_step"])
    min_step_ms: PositiveMs = Field(description="Least advance in milliseconds.", examples=[60000])

    def throttle(self) -> Throttle:
        return MinStepThrottle(self.min_step_ms)


ThrottleDocument = Annotated[
    NoThrottleDocument | FrameThrottleDocument | MinStepThrottleDocument, Field(discriminator="type")
]


KINDS = frozenset(
    {
        "limiting_lag",
        "limiting_lag_and_delay",
        "limiting_lag_and_lull",
        "limiting_timestamp_and_wall_clock_lag",
        "target_completeness",
        "reported",
        "none",
        "frame",
        "min_step",
    }
)
"""Values of ``type`` of policies and throttles. No field has one of these names."""


class JobDocument(Request):
    """The complete configuration of a job.

    A member that is left out has its default, also when an existing job is changed. Limits are in milliseconds of
    processing time.
    """

    policy: PolicyDocument = Field(description="Policy of substreams that no override matches.")
    overrides: list[OverrideDocument] = Field(
        default=[],
        max_length=MAX_OVERRIDES,
        description="Policies by substream name; the first match wins.",
        examples=[[{"substreams": "HNL*", "policy": {"type": "limiting_lag", "lag_ms": 7200000}}]],
    )
    throttle: ThrottleDocument = Field(
        default=NoThrottleDocument(type="none"), description="How often the coalesced watermark moves."
    )
    idle_timeout_ms: PositiveMs | None = Field(
        default=None,
        description="Observed silence after which a substream no longer holds the watermark. Null: off.",
        examples=[900000],
    )
    max_retention_ms: PositiveMs | None = Field(
        default=None,
        description="Longest time for which slower substreams hold the watermark below the fastest one. Null: off.",
        examples=[7200000],
    )
    query_timeout_ms: PositiveMs | None = Field(
        default=None,
        description="Time without contact after which the substreams of a query no longer hold the watermark. "
        "Null: off.",
        examples=[3600000],
    )
    max_batch_hold_ms: PositiveMs | None = Field(
        default=None,
        description="Time after which an open batch no longer holds the watermark. Null: off.",
        examples=[86400000],
    )
    delay_half_life_ms: PositiveMs = Field(
        default=DELAY_HALF_LIFE_MS,
        description="Advance of event time that halves the weight of measured delays.",
        examples=[DELAY_HALF_LIFE_MS],
    )
    max_future_skew_ms: DurationMs | None = Field(
        default=DAY_MS,
        description="Event times further ahead of the clock are ignored. Set null if event times are not Unix "
        "milliseconds.",
        examples=[DAY_MS],
    )
    expected_queries: list[Id] = Field(
        default=[],
        max_length=MAX_EXPECTED_QUERIES,
        json_schema_extra={"uniqueItems": True},
        description="Queries that hold the watermark until they have substreams.",
        examples=[["departures"]],
    )

    @model_validator(mode="after")
    def _check_config(self) -> Self:
        self.config()
        return self

    def config(self) -> JobConfig:
        """Return the configuration as the domain has it.

        Raises:
            InvalidConfig: If a policy, a throttle or a limit cannot work.
        """
        return JobConfig(
            self.policy.policy(),
            self.throttle.throttle(),
            self.idle_timeout_ms,
            self.max_retention_ms,
            self.query_timeout_ms,
            self.max_batch_hold_ms,
            self.max_future_skew_ms,
            tuple(Override(override.substreams, override.policy.policy()) for override in self.overrides),
            tuple(self.expected_queries),
            self.delay_half_life_ms,
        )
