"""Calls that create, configure, list, get and delete jobs."""

from typing import Annotated, Literal

from fastapi import APIRouter, Header, Query, Response
from starlette.status import HTTP_200_OK, HTTP_201_CREATED, HTTP_204_NO_CONTENT

from tidegate.auth.roles import ADMINS, OPERATORS, READERS, REPORTERS_AND_OPERATORS
from tidegate.domain.errors import RevisionMismatch
from tidegate.domain.job import ANY_VERSION, ConfigVersion
from tidegate.domain.values import NAME_OR_EMPTY
from tidegate.http.bodies import body_of, json_answer
from tidegate.http.problems import Problem
from tidegate.http.request import CallerOf, Context, ContextOf, JobId, allowed
from tidegate.store.jobs import JobQuota
from tidegate.views.config import ConfigDocument
from tidegate.views.status import JobList, JobStatus, read_job_list, read_status

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

IfMatch = Annotated[
    str | None,
    Header(description="ETag of the job that the client has read, or `*` for any.", examples=['"9c1f4be2a07d5e63-1"']),
]


def _etag(job: JobStatus) -> str:
    return f'"{job.state_epoch}-{job.revision}"'


async def _answer(context: Context, job: str, status: int = HTTP_200_OK) -> Response:
    answer = await read_status(context.reader, job)
    return json_answer(answer, status, ETag=_etag(answer))


async def _matching_version(context: Context, job: str, if_match: str) -> ConfigVersion:
    """Return the version of the configuration of a job to which the header refers, if it is the current one.

    The function in Redis compares the version again, because the job may change until then.

    Raises:
        RevisionMismatch: If the header does not match.
    """
    current = await read_status(context.reader, job)
    if if_match.strip() == "*":
        return ANY_VERSION
    if if_match.strip() != _etag(current):
        raise RevisionMismatch(current.revision)
    return ConfigVersion(current.state_epoch, current.revision)


@router.put(
    "/{job:id}",
    response_model=JobStatus,
    responses={HTTP_201_CREATED: {"model": JobStatus, "description": "The job was created."}},
    summary="Create or configure a job",
)
@allowed(*REPORTERS_AND_OPERATORS)
async def configure(
    job: JobId,
    document: Annotated[ConfigDocument, body_of(ConfigDocument)],
    context: ContextOf,
    caller: CallerOf,
    if_match: IfMatch = None,
    if_none_match: Annotated[
        Literal["*"] | None, Header(description="`*` creates the job, and fails if the job exists.", examples=["*"])
    ] = None,
) -> Response:
    """Create a job (`If-None-Match: *`), or replace its configuration (`If-Match` with its ETag)."""
    version = None
    if if_none_match is None:
        caller.require_role(*OPERATORS)  # reporters may create jobs, but not change them
        if if_match is None:
            raise Problem(
                "precondition_required",
                "Send If-None-Match: * to create the job, or If-Match with its ETag to change it.",
            )
        version = await _matching_version(context, job, if_match)
    with caller.within_quotas() as quotas:
        quota = None if quotas.jobs is None else JobQuota(caller.prefix, quotas.jobs)
        stored = await context.store.configure(
            job, document.config, document.model_dump(), version, caller.audit_info(), quota=quota
        )
    return await _answer(context, job, HTTP_201_CREATED if stored.created else HTTP_200_OK)


@router.get("", response_model=JobList, summary="List jobs")
@allowed(*READERS)
async def list_jobs(
    context: ContextOf,
    caller: CallerOf,
    after: Annotated[
        str, Query(pattern=NAME_OR_EMPTY, description="The `next` of the previous page.", examples=["flights"])
    ] = "",
    limit: Annotated[int, Query(ge=1, le=1000, description="Maximum number of jobs in a page.", examples=[100])] = 100,
) -> Response:
    """Return the status of each job that the caller can access, sorted by name."""
    return json_answer(await read_job_list(context.reader, caller.prefix, after, limit))


@router.get("/{job:id}", response_model=JobStatus, summary="Get a job")
@allowed(*READERS)
async def status(job: JobId, context: ContextOf) -> Response:
    """Return the status of a job. Send its ETag in `If-Match` to change the configuration."""
    return await _answer(context, job)


@router.delete("/{job:id}", status_code=HTTP_204_NO_CONTENT, summary="Delete a job")
@allowed(*ADMINS)
async def delete(job: JobId, context: ContextOf, if_match: IfMatch = None) -> Response:
    """Delete a job. For seven days, the coordinator answers calls about it with 410, unless a PUT creates it again.

    The coordinator remembers the last 10,000 deleted jobs.
    """
    version = ANY_VERSION if if_match is None else await _matching_version(context, job, if_match)
    await context.store.delete(job, version)
    return Response(status_code=HTTP_204_NO_CONTENT)
