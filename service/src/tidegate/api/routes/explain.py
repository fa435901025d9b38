"""One call for the question at three in the morning: why has nothing come out?"""

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Query, Response

from tidegate.api.access import READERS, allowed
from tidegate.api.bodies import answer
from tidegate.api.context import Ctx, JobId
from tidegate.api.schemas.explain import Explanation, HeldRecord
from tidegate.api.schemas.rules import JobDocument
from tidegate.domain.explain import MOST_HOLDERS, explain

router = APIRouter(prefix="/v1/jobs", tags=["state"])


@router.get("/{job:id}:explain", response_model=Explanation)
@allowed(*READERS)
async def explain_job(
    job: JobId, ctx: Ctx, most: Annotated[int, Query(ge=1, le=MOST_HOLDERS, description="how many holders")] = 3
) -> Response:
    """Who holds the watermark, since when, why, until when at most; and where it would be without the first of them."""
    found = await ctx.store.held(job, most)
    machine = found.machine(JobDocument.model_validate(found.document).config())
    explained = explain(machine, machine.now_ms, most)
    return answer(
        Explanation(
            **ctx.watermark(job, explained.answer),
            held=[HeldRecord.model_validate({**asdict(one), **asdict(one.holder)}) for one in explained.held],
            next_step=explained.next_step,
        )
    )
