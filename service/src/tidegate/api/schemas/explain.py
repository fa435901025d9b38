"""Why a watermark is where it is."""

from pydantic import Field

from tidegate.api.schemas.jobs import HolderRecord, WatermarkRecord
from tidegate.api.schemas.types import Record


class UntilRecord(Record):
    """A limit that lets the watermark pass a holder, if nothing comes of it before `at_ms`.

    `limit` is the name of a rule, or `expires_ms` of a hold. `needs_query_report`: it needs a word of the holder's
    query (a
    batch, or a heartbeat) that there was nothing, so it may also be later.
    """

    limit: str
    at_ms: int
    needs_query_report: bool


class ExplainedHolderRecord(HolderRecord):
    """A holder, and what would be without it and those before it in the list: without the substream (evicted), the
    missing query (retired), the open batch (given up, by retiring its query to itself), or the hold (released).
    """

    until: list[UntilRecord]
    coalesced_watermark_without: int | None
    watermark_without: int | None


class Explanation(WatermarkRecord):
    """Who holds the watermark, and who would next; none where nobody does.

    `next_step`: what the data must have come to before the throttle lets the watermark move; null: any step will do.
    """

    holders: list[ExplainedHolderRecord] = Field(description="the first is the holder itself")
    next_step: int | None
