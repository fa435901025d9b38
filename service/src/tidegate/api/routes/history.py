"""What happened to a job, and what was known at a moment."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from tidegate.api.access import READERS, allowed
from tidegate.api.bodies import answer
from tidegate.api.context import Context, Ctx, JobId
from tidegate.api.schemas.history import RECORD_ID, HistoryPage, HistoryRecord, Kind
from tidegate.domain.journal import RECORDS_KEPT
from tidegate.store.replies import order

router = APIRouter(prefix="/v1/jobs", tags=["state"])


@router.get("/{job:id}/history", response_model=HistoryPage, response_model_exclude_unset=True)
@allowed(*READERS)
async def history(
    job: JobId,
    ctx: Ctx,
    as_of: Annotated[int | None, Query(ge=0, le=2**53 - 1, description="nothing that came after it")] = None,
    from_ms: Annotated[int, Query(ge=0, le=2**53 - 1, description="nothing that came before it")] = 0,
    kind: Annotated[list[Kind] | None, Query(description="of these kinds only")] = None,
    before: Annotated[str | None, Query(pattern=RECORD_ID, description="the `next` of the page before")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Response:
    """What happened, the latest first; `as_of` a moment, also which watermark was in force then, and who held it."""
    status = await ctx.store.status(job)
    found = await ctx.store.history(job, before, from_ms, as_of, kind or (), limit + 1)
    page = [HistoryRecord.of(*entry) for entry in found[:limit]]
    first = await ctx.store.records(job, most=1)
    return answer(
        HistoryPage(
            **ctx.watermark(job, status.answer),
            as_of=await _in_force(ctx, job, as_of),
            kept_from_ms=first[0][1].at_ms if first else None,
            records=page,
            next=page[-1].id if len(found) > limit else None,
        ),
        whole=False,
    )


async def _in_force(ctx: Context, job: str, at_ms: int | None) -> HistoryRecord | None:
    """The last emission by then, unless the job was reset after it: a new incarnation has no watermark."""
    for entry in await ctx.store.history(job, to_ms=at_ms, kinds=("emission",), most=1):
        emission = HistoryRecord.of(*entry)
        after = await ctx.store.history(job, from_ms=emission.at_ms, to_ms=at_ms, kinds=("action",), most=RECORDS_KEPT)
        later = (record for entry_id, record in after if order(entry_id) > order(emission.id))
        return None if any(record.details["action"] == "reset" for record in later) else emission
    return None
