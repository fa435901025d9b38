"""A job's document: its policies, its throttle, its limits."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from tidegate.api.schemas.types import DurationMs, Id, PositiveMs, Request, Text
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

DAY_MS = 24 * 3_600_000


class LimitingLagDocument(Request):
    """Fixed lag: a substream's watermark trails its top by `lag_ms`."""

    type: Literal["limiting_lag"]
    lag_ms: DurationMs

    def policy(self) -> Policy:
        return LimitingLag(self.lag_ms)


class LimitingLagAndDelayDocument(Request):
    """Fixed lag; and what was the top `max_delay_ms` ago is complete by now."""

    type: Literal["limiting_lag_and_delay"]
    lag_ms: DurationMs
    max_delay_ms: PositiveMs

    def policy(self) -> Policy:
        return LimitingLagAndDelay(self.lag_ms, self.max_delay_ms)


class LimitingLagAndLullDocument(Request):
    """Fixed lag; and once a substream saw no event for `max_lull_ms`, its watermark moves on with the clock."""

    type: Literal["limiting_lag_and_lull"]
    lag_ms: DurationMs
    max_lull_ms: DurationMs

    def policy(self) -> Policy:
        return LimitingLagAndLull(self.lag_ms, self.max_lull_ms)


class LimitingTimestampAndWallClockLagDocument(Request):
    """A lag behind the top, and another behind the clock; the watermark is the higher of the two."""

    type: Literal["limiting_timestamp_and_wall_clock_lag"]
    timestamp_lag_ms: DurationMs
    wall_clock_lag_ms: DurationMs

    def policy(self) -> Policy:
        return LimitingTimestampAndWallClockLag(self.timestamp_lag_ms, self.wall_clock_lag_ms)


class TargetCompletenessDocument(Request):
    """The least lag under which a share of `target` of the rows would have been on time, learnt by substream from the
    `delays` in reports; within `floor_ms` and `ceiling_ms` (null: no ceiling). It is `cold_start_lag_ms` until
    `min_rows` were seen of the substream, or of all together (null: as many as have ten beyond the target).
    """

    type: Literal["target_completeness"]
    target: float = Field(strict=True, ge=LOWEST_TARGET, le=HIGHEST_TARGET)
    cold_start_lag_ms: DurationMs
    floor_ms: DurationMs = 0
    ceiling_ms: DurationMs | None = None
    min_rows: int | None = Field(default=None, strict=True, ge=1, le=10**9)

    def policy(self) -> Policy:
        return TargetCompleteness(self.target, self.cold_start_lag_ms, self.floor_ms, self.ceiling_ms, self.min_rows)


class ReportedDocument(Request):
    """The client sends ready-made watermarks."""

    type: Literal["reported"]

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
    """A policy of their own for the substreams whose names fit; `*` stands for any characters."""

    substreams: Text = Field(min_length=1, max_length=200)
    policy: PolicyDocument


class NoThrottleDocument(Request):
    """Every advance is emitted."""

    type: Literal["none"]

    def throttle(self) -> Throttle:
        return NoThrottle()


class FrameThrottleDocument(Request):
    """One emission a frame, at the frame's boundary. `slide_ms` is `size_ms` unless windows slide."""

    type: Literal["frame"]
    size_ms: PositiveMs
    slide_ms: PositiveMs | None = None
    offset_ms: DurationMs = 0

    def throttle(self) -> Throttle:
        slide = self.size_ms if self.slide_ms is None else self.slide_ms
        return FrameThrottle(Frame(self.size_ms, slide, self.offset_ms))


class MinStepThrottleDocument(Request):
    """An emission as soon as the watermark is at least `min_step_ms` ahead of the last one, unrounded."""

    type: Literal["min_step"]
    min_step_ms: PositiveMs

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
"""What ``type`` may be, of a policy or a throttle; no field is called so."""


class JobDocument(Request):
    """The rules of a job, all of them: what is left out has its default, also where a job is changed. Limits are in
    milliseconds of processing time; null: off.

    - `overrides`: policies by substream name; the first that fits counts.
    - `idle_timeout_ms`: observed silence after which a substream no longer holds the rest back.
    - `max_retention_ms`: how long slower substreams may hold back what one of them has reached.
    - `query_timeout_ms`: after so long without a word from a query its substreams no longer hold the rest back.
    - `max_batch_hold_ms`: after so long an open batch no longer holds the watermark at its pin.
    - `delay_half_life_ms`: while event time goes on by so much, what is known of delays fades to half.
    - `max_future_skew_ms`: event times further ahead of the clock move nothing. Set it to null where event times are
      no epoch milliseconds.
    - `expected_queries`: each holds the watermark from the start, until it has shown its substreams.
    """

    policy: PolicyDocument
    overrides: list[OverrideDocument] = Field(default=[], max_length=MAX_OVERRIDES)
    throttle: ThrottleDocument = NoThrottleDocument(type="none")
    idle_timeout_ms: PositiveMs | None = None
    max_retention_ms: PositiveMs | None = None
    query_timeout_ms: PositiveMs | None = None
    max_batch_hold_ms: PositiveMs | None = None
    delay_half_life_ms: PositiveMs = DELAY_HALF_LIFE_MS
    max_future_skew_ms: DurationMs | None = DAY_MS
    expected_queries: list[Id] = Field(
        default=[], max_length=MAX_EXPECTED_QUERIES, json_schema_extra={"uniqueItems": True}
    )

    @model_validator(mode="after")
    def _must_work(self) -> Self:
        self.config()
        return self

    def config(self) -> JobConfig:
        """:raises InvalidConfig: for rules that cannot work."""
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
