"""One call for the question at three in the morning: why has nothing come out?"""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from tidegate.api import views
from tidegate.api.access import READERS, allowed
from tidegate.api.bodies import answer
from tidegate.api.context import Ctx, JobId
from tidegate.api.schemas.explain import Explanation
from tidegate.domain.explain import MAX_HOLDERS

router = APIRouter(prefix="/v1/jobs", tags=["state"])


@router.get("/{job:id}:explain", response_model=Explanation)
@allowed(*READERS)
async def explain_job(
    job: JobId,
    ctx: Ctx,
    limit: Annotated[int, Query(ge=1, le=MAX_HOLDERS, description="Number of holders to list.")] = 3,
) -> Response:
    """Who holds the watermark, since when, why, until when at most; and where it would be without the first of them."""
    return answer(await views.explanation(ctx, job, limit))
