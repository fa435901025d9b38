"""Jobs: create, change, list, read, delete."""

from typing import Annotated, Literal

from fastapi import APIRouter, Header, Query, Request, Response

from tidegate.api import views
from tidegate.api.access import ADMINS, OPERATORS, READERS, REPORTERS_AND_OPERATORS, Who, allowed
from tidegate.api.bodies import answer, body_of, read
from tidegate.api.context import Context, Ctx, JobId
from tidegate.api.problems import Problem
from tidegate.api.schemas.config import JobDocument
from tidegate.api.schemas.jobs import JobList, JobRecord
from tidegate.api.schemas.types import ID
from tidegate.domain.errors import JobDeleted, JobNotFound, RevisionMismatch
from tidegate.store.jobs import JobQuota

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])


def _etag(incarnation: int, revision: int) -> str:
    return f'"{incarnation}-{revision}"'


async def _answer(ctx: Context, job: str, code: int = 200) -> Response:
    status = await ctx.store.reads.status(job)
    return answer(views.job_record(ctx, job, status), code, ETag=_etag(status.state.incarnation, status.revision))


async def _revision(ctx: Context, job: str, if_match: str) -> int:
    """The revision that the job is at, if that is the one named.

    :raises RevisionMismatch: if it isn't.
    """
    current = await ctx.store.reads.status(job)
    if if_match.strip() not in (_etag(current.state.incarnation, current.revision), "*"):
        raise RevisionMismatch(current.revision)
    return current.revision


@router.put(
    "/{job:id}", response_model=JobRecord, openapi_extra=body_of(JobDocument), responses={201: {"model": JobRecord}}
)
@allowed(*REPORTERS_AND_OPERATORS)
async def put_job(
    job: JobId,
    request: Request,
    ctx: Ctx,
    who: Who,
    if_match: Annotated[str | None, Header()] = None,
    if_none_match: Annotated[Literal["*"] | None, Header()] = None,
) -> Response:
    """Creates a job (`If-None-Match: *`), or changes its rules (`If-Match` with its ETag)."""
    if if_none_match is None:
        who.check(*OPERATORS)  # a reporter creates its job, and changes none
    document = await read(request, JobDocument)
    if if_none_match is None and if_match is None:
        raise Problem(
            428,
            "precondition_required",
            "Say whether to create the job (If-None-Match: *) or to change the one you read (If-Match: its ETag).",
        )
    revision = None if if_none_match is not None or if_match is None else await _revision(ctx, job, if_match)
    with who.within_quotas() as quotas:
        quota = None if quotas.jobs is None else JobQuota(who.prefix, quotas.jobs)
        stored = await ctx.store.configure(
            job, document.config(), document.model_dump(), revision, who.why(), quota=quota
        )
    return await _answer(ctx, job, 201 if stored.created else 200)


@router.get("", response_model=JobList)
@allowed(*READERS)
async def list_jobs(
    ctx: Ctx,
    who: Who,
    after: Annotated[str, Query(pattern=rf"^$|{ID}")] = "",
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Response:
    """All jobs by name, with their status, a page at a time; those that the key is for."""
    found: list[JobRecord] = []
    for job in await ctx.store.reads.jobs():
        if job <= after or not job.startswith(who.prefix):
            continue
        try:
            record = views.job_record(ctx, job, await ctx.store.reads.status(job))
        except (JobNotFound, JobDeleted):  # since its name was read
            continue
        if len(found) == limit:
            return answer(JobList(jobs=found, next=found[-1].job))
        found.append(record)
    return answer(JobList(jobs=found, next=None))


@router.get("/{job:id}", response_model=JobRecord)
@allowed(*READERS)
async def get_job(job: JobId, ctx: Ctx) -> Response:
    """The status of a job. Its ETag is what a change must name."""
    return await _answer(ctx, job)


@router.delete("/{job:id}", status_code=204)
@allowed(*ADMINS)
async def delete_job(job: JobId, ctx: Ctx, if_match: Annotated[str | None, Header()] = None) -> Response:
    """Deletes a job; with `If-Match`, only as it was read. Reports get 410 until a PUT starts a new incarnation."""
    await ctx.store.delete(job, None if if_match is None else await _revision(ctx, job, if_match))
    return Response(status_code=204)
