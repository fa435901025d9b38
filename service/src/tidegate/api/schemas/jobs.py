"""What a job says of itself."""

from typing import Literal

from pydantic import Field

from tidegate.api.schemas.config import JobDocument
from tidegate.api.schemas.types import Record
from tidegate.domain.health import Health


class HolderRecord(Record):
    """Who keeps the watermark where it is.

    `reason`: `slow`, the live substream that is furthest behind; `never_reported`: one of which nothing was seen yet;
    `blocked`: one that is silent for longer than the idle timeout, but its query has not said that there was nothing;
    `missing_query`: an expected query that has shown no substreams yet; `open_batch`; `hold`, an operator's.
    `since_ms`: since when the watermark has been where it is, whoever held it before. `last_event_ms`: when the
    substream's last report took effect. `begun_ms`: when the open batch was begun.
    """

    reason: Literal["slow", "never_reported", "blocked", "missing_query", "open_batch", "hold"]
    query: str
    substream: str | None
    batch_id: int | None
    hold: str | None
    since_ms: int
    last_event_ms: int | None
    begun_ms: int | None


class WatermarkRecord(Record):
    """`watermark` is what may be relied on, `coalesced_watermark` what the data says; null: none yet.

    `watermark_token` proves it; send it along with the next call. `state_epoch` changes when the job began anew:
    because the store has lost it, or because somebody deleted or reset it; only then is `incarnation` higher than
    before. `now_ms` is the coordinator's processing time.
    """

    job: str
    watermark: int | None
    coalesced_watermark: int | None
    complete: bool
    now_ms: int
    state_epoch: str
    incarnation: int
    watermark_token: str
    held_by: HolderRecord | None


class EffectRecord(WatermarkRecord):
    """`applied` is false where the call changed nothing: it was a repetition, or came too late to count, or nothing in
    it could count (event times too far ahead of the clock, substreams that are done).
    """

    applied: bool


class HoldEffectRecord(EffectRecord):
    """`hold` is the name by which the hold is released."""

    hold: str


class WaitRecord(WatermarkRecord):
    """`reached`: whether the watermark has come to `at_least`; true where nothing was waited for."""

    reached: bool


class CountsRecord(Record):
    """Rows that commits accounted for, by what became of them."""

    on_time: int
    updated: int
    late: int
    null_event_time: int
    future: int


class SubstreamCounts(Record):
    """How many substreams hold, or may come to hold (`active`), or no longer do. `all_idle`: there is nobody left to
    wait for.
    """

    active: int
    idle: int
    done: int
    all_idle: bool


class HoldRecord(Record):
    """An operator's hold. `expires_ms` is processing time; null: it does not."""

    hold: str
    at_most: int
    expires_ms: int | None
    reason: str


class JobRecord(WatermarkRecord):
    """The status of a job.

    - `health`: the whole in one word. `stale`: no client has spoken for it for long, and no batch is open; `held` for
      more than a turn; `no_watermark` yet; `running`; `all_idle`: nobody is waited for; `empty`: nothing was reported
      yet; `complete`.
    - `missing_queries`: expected ones that have shown no substreams yet.
    - `limits`: how often each limit has let the watermark pass somebody.
    - `future_rows`: rows and reports left out because their event times were too far ahead of the clock.
    - `tokens_ignored`: how many watermark tokens proved nothing.
    - `emissions`: how often the watermark moved; `throttled`: how often there was more to emit, and the throttle let
      nothing out. Like all counts of a job, they go on after a reset.
    - `last_contact_ms`: when a client last reported, or spoke for a query; null: never.
    """

    health: Health
    config: JobDocument
    revision: int
    created_ms: int
    max_event_time: int | None
    max_watermark: int | None
    substreams: SubstreamCounts
    rows: CountsRecord
    holds: list[HoldRecord]
    missing_queries: list[str]
    limits: dict[str, int] = Field(description="times each limit has acted, by its name")
    future_rows: int
    tokens_ignored: int
    emissions: int
    throttled: int
    last_contact_ms: int | None
    open_batches: int


class JobList(Record):
    """A page of jobs by name. `next`: the `after` of the following page, null on the last."""

    jobs: list[JobRecord]
    next: str | None
