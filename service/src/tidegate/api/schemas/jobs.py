"""A job's document, and its status."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from tidegate.api.schemas.types import DurationMs, Id, Names, PositiveMs, Record, Request
from tidegate.domain.config import JobConfig
from tidegate.domain.frame import Frame
from tidegate.domain.policy import LimitingLag
from tidegate.domain.throttle import FrameThrottle, NoThrottle, Throttle


class LimitingLagDocument(Request):
    """Fixed lag: a substream's watermark trails its top by ``lag_ms``."""

    type: Literal["limiting_lag"]
    lag_ms: DurationMs


class NoThrottleDocument(Request):
    """Every advance is emitted."""

    type: Literal["none"] = "none"


class FrameThrottleDocument(Request):
    """One emission a frame, at the frame's boundary. ``slide_ms`` is ``size_ms`` unless windows slide."""

    type: Literal["frame"]
    size_ms: PositiveMs
    slide_ms: PositiveMs | None = None
    offset_ms: DurationMs = 0


class JobDocument(Request):
    """The rules of a job: one policy, one throttle, its limits. ``idle_timeout_ms`` null: nobody ever falls idle."""

    policy: LimitingLagDocument
    throttle: Annotated[NoThrottleDocument | FrameThrottleDocument, Field(discriminator="type")] = NoThrottleDocument()
    idle_timeout_ms: PositiveMs | None = None

    @model_validator(mode="after")
    def _must_work(self) -> Self:
        self.config()
        return self

    def config(self) -> JobConfig:
        """:raises InvalidConfig: for rules that cannot work."""
        throttle: Throttle = NoThrottle()
        if isinstance(self.throttle, FrameThrottleDocument):
            slide = self.throttle.size_ms if self.throttle.slide_ms is None else self.throttle.slide_ms
            throttle = FrameThrottle(Frame(self.throttle.size_ms, slide, self.throttle.offset_ms))
        return JobConfig(LimitingLag(self.policy.lag_ms), throttle, self.idle_timeout_ms)


class Declaration(Request):
    """Substreams that are to hold the watermark from the start. ``query`` "": reports without batches."""

    names: Names
    query: Id | Literal[""] = ""
    reason: str | None = Field(default=None, max_length=1000)


class Action(Request):
    """Why something was done to the whole job."""

    reason: str | None = Field(default=None, max_length=1000)


class HolderRecord(Record):
    """Who keeps the watermark where it is: an open batch, or the active substream with the lowest watermark.

    ``reason``: ``slow``; ``never_reported`` (declared, nothing seen yet); ``blocked`` (silent for longer than the idle
    timeout, but its query has not said that there was nothing); ``open_batch``.
    """

    reason: Literal["slow", "never_reported", "blocked", "open_batch"]
    query: str
    substream: str | None
    batch_id: int | None
    since_ms: int


class WatermarkRecord(Record):
    """``watermark`` is what may be relied on, ``coalesced`` what the data says; null: none yet.

    ``watermark_token`` proves it; send it along with the next call. ``state_epoch`` changes when the store has lost the
    job. ``now_ms`` is the coordinator's processing time.
    """

    job: str
    watermark: int | None
    coalesced: int | None
    complete: bool
    now_ms: int
    state_epoch: str
    watermark_token: str
    holder: HolderRecord | None


class EffectRecord(WatermarkRecord):
    """``applied`` is false where the call was a repetition and changed nothing."""

    applied: bool


class WaitRecord(WatermarkRecord):
    """``reached``: whether the watermark has come to ``at_least``; true where nothing was waited for."""

    reached: bool


class CountsRecord(Record):
    """Rows that commits accounted for, by what became of them."""

    on_time: int
    updated: int
    late: int
    null_event_time: int
    future: int


class SubstreamCounts(Record):
    """How many substreams hold, or may come to hold (``active``), or no longer do."""

    active: int
    idle: int
    done: int


class JobRecord(WatermarkRecord):
    """The status of a job. ``tokens_ignored``: how many watermark tokens proved nothing."""

    config: JobDocument
    revision: int
    created_ms: int
    top: int | None
    lead: int | None
    substreams: SubstreamCounts
    rows: CountsRecord
    tokens_ignored: int


class JobList(Record):
    """A page of jobs by name. ``next``: the ``after`` of the following page, null on the last."""

    jobs: list[JobRecord]
    next: str | None
