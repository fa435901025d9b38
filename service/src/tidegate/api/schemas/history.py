"""What happened to a job: the record that every watermark can be explained from."""

from typing import Self

from pydantic import Field

from tidegate.api.schemas.jobs import WatermarkRecord
from tidegate.api.schemas.types import Record
from tidegate.domain.journal import MOVEMENTS, Kind
from tidegate.domain.journal import Record as JournalRecord

RECORD_ID = r"^[0-9]{1,16}-[0-9]{1,19}$"


class PassedRecord(Record):
    """A limit of the rules that let the watermark pass substreams: how many, and the first of them."""

    limit: str
    count: int
    substreams: list[str]


class HistoryRecord(Record):
    """One thing that happened; members that say nothing of its kind are left out.

    `created`: the job, or a new incarnation of it. `config`: they were changed. `emission`: the emitted watermark
    moved, to `watermark`; `held_by`, with `query`, `substream`, `batch_id` or `hold`, kept it from going further, and
    `limits` let it pass substreams. `coalesced_watermark`: only the coalesced watermark moved, to
    `coalesced_watermark`; `watermark` is
    where it was, null if there is none. `idle`, `wake`: substreams no longer count (by which `limit`), or count
    again. `all_idle`, `not_all_idle`: none is left that counts, or one is again. `batch_released`: an open batch was
    held for too long. `joined`: a query that nobody expected. `fenced`: a run was replaced by another. `future`:
    event times too far ahead of the clock were ignored. `relearn`: rows of substreams come later than was learnt of
    them. `healed`: a token proved a watermark that the store had forgotten. `absence`: nobody looked for so long
    (`unattended_ms`) that it counts as nobody's silence. `hold_expired`: a hold came to its end. `action`: somebody
    (`actor`) did something (`action`), for a `reason`.

    `substreams` are named as `query/substream`, the first 20 of `count`.
    """

    id: str = Field(description="names it, in its order; ids of one job compare as they happened")
    at_ms: int
    kind: Kind
    watermark: int | None = None
    coalesced_watermark: int | None = None
    held_by: str | None = None
    query: str | None = None
    substream: str | None = None
    batch_id: int | None = None
    hold: str | None = None
    limits: list[PassedRecord] | None = None
    limit: str | None = None
    count: int | None = None
    substreams: list[str] | None = None
    run_id: str | None = None
    unattended_ms: int | None = None
    action: str | None = None
    successor: str | None = None
    at_most: int | None = None
    up_to: int | None = None
    actor: str | None = None
    reason: str | None = None

    @classmethod
    def of(cls, entry_id: str, record: JournalRecord) -> Self:
        members = {"id": entry_id, "at_ms": record.at_ms, "kind": record.kind, **record.details}
        if record.kind in MOVEMENTS:
            members.setdefault("watermark", None)
        return cls.model_validate(members, extra="forbid")


class HistoryPage(WatermarkRecord):
    """Records of a job, the latest first.

    `as_of`: the `emission` or `coalesced_watermark` record that was in force at the moment asked for; null where there
    was none
    yet, or where it is no longer kept. `kept_from_ms`: what was before that is forgotten. `next`: the `before` of the
    following page, null on the last.
    """

    as_of: HistoryRecord | None
    kept_from_ms: int | None
    records: list[HistoryRecord]
    next: str | None
