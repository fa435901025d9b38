"""The explanation of a watermark."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from tidegate.auth.roles import READERS
from tidegate.domain.explain import MAX_HOLDERS
from tidegate.reads.explain import Explanation, read_explanation
from tidegate.web.access import allowed
from tidegate.web.bodies import json_answer
from tidegate.web.context import ContextOf, JobId

router = APIRouter(prefix="/v1/jobs", tags=["state"])


@router.get("/{job:id}:explain", response_model=Explanation, summary="Explain a watermark")
@allowed(*READERS)
async def explain_job(
    job: JobId,
    context: ContextOf,
    limit: Annotated[int, Query(ge=1, le=MAX_HOLDERS, description="Number of holders to list.", examples=[3])] = 3,
) -> Response:
    """Return what holds the watermark, until when at most, and where the watermark would be without it."""
    return json_answer(await read_explanation(context.reader, job, limit))
