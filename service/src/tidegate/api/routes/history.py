"""What happened to a job, and what was known at a moment."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from tidegate.api import views
from tidegate.api.access import READERS, allowed
from tidegate.api.bodies import answer
from tidegate.api.context import Ctx, JobId
from tidegate.api.schemas.history import RECORD_ID, HistoryPage
from tidegate.domain.journal import Kind

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
    page = await views.history_page(
        ctx, job, as_of=as_of, from_ms=from_ms, kinds=kind or (), before=before, limit=limit
    )
    return answer(page, whole=False)
