"""The history of a job, in pages."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from tidegate.auth.roles import READERS
from tidegate.domain.history import Kind
from tidegate.domain.values import EXACT_DOUBLE
from tidegate.views.history import RECORD_ID, HistoryPage, read_history
from tidegate.web.access import allowed
from tidegate.web.actions import check_processing_time
from tidegate.web.bodies import compact_answer
from tidegate.web.context import ContextOf, JobId

router = APIRouter(prefix="/v1/jobs", tags=["state"])


@router.get("/{job:id}/history", response_model=HistoryPage, summary="Get the history of a job")
@allowed(*READERS)
async def history(
    job: JobId,
    context: ContextOf,
    as_of: Annotated[
        int | None,
        Query(
            ge=0,
            le=EXACT_DOUBLE.highest,
            description="Latest processing time of records. The answer includes the watermark at that time.",
            examples=[1357554660000],
        ),
    ] = None,
    since: Annotated[
        int,
        Query(ge=0, le=EXACT_DOUBLE.highest, description="Earliest processing time of records.", examples=[0]),
    ] = 0,
    kind: Annotated[list[Kind] | None, Query(description="Kinds of records.", examples=[["emission"]])] = None,
    before: Annotated[
        str | None,
        Query(pattern=RECORD_ID, description="The `next` of the previous page.", examples=["1357554600000-0"]),
    ] = None,
    limit: Annotated[
        int, Query(ge=1, le=1000, description="Maximum number of records in a page.", examples=[100])
    ] = 100,
) -> Response:
    """Return the records of a job, latest first."""
    check_processing_time("as_of", as_of)
    check_processing_time("since", since)
    return compact_answer(await read_history(context.reader, job, as_of, since, kind or (), before, limit))
