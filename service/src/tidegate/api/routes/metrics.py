"""What Prometheus scrapes."""

import asyncio
import logging
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from prometheus_client.exposition import choose_encoder
from redis.exceptions import RedisError, ResponseError

from tidegate.api.access import READERS, Who, allowed
from tidegate.api.context import Context, Ctx
from tidegate.domain.errors import DomainError
from tidegate.domain.pattern import matches
from tidegate.domain.records import SubstreamRow
from tidegate.runtime.metrics import JobMetrics, Scrape
from tidegate.store.connection import is_failed_script
from tidegate.store.redis import Status

log = logging.getLogger(__name__)

router = APIRouter(tags=["health"])

JOBS = r"^[A-Za-z0-9._~*-]{1,128}$"


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "For Prometheus."}},
)
@allowed(*READERS)
async def metrics(
    request: Request,
    ctx: Ctx,
    who: Who,
    substreams: Annotated[
        str | None,
        Query(pattern=JOBS, description="of jobs with such names (`*`: any characters) each substream, too"),
    ] = None,
) -> Response:
    """What this replica measures, and how the jobs are that the key is for; these are the same at every replica."""
    statuses: dict[str, Status] | None = None
    unreadable, rows = 0, dict[str, list[SubstreamRow]]()
    try:
        found = await ctx.overview.statuses()
        statuses = {job: status for job, status in found.items() if job.startswith(who.prefix)}
        unreadable = sum(job.startswith(who.prefix) for job in ctx.overview.unreadable)
        ctx.metrics.forget(found.keys() | ctx.overview.unreadable)
        if substreams is not None:
            rows, failed = await _rows(ctx, [job for job in statuses if matches(substreams, job)])
            unreadable += failed
    except RedisError:
        statuses = None  # which is told, with what this replica measures
    try:
        encode, kind = choose_encoder(request.headers.get("accept", ""))
    except (TypeError, ValueError):  # a version that is none
        encode, kind = choose_encoder("")
    jobs = JobMetrics(statuses, unreadable, rows, ctx.stale_after_ms)
    scrape = Scrape(ctx.metrics.registry, jobs, who.prefix)
    # There may be hundreds of thousands of lines; meanwhile others are served.
    return Response(await asyncio.to_thread(encode, scrape), media_type=kind)


async def _rows(ctx: Context, jobs: list[str]) -> tuple[dict[str, list[SubstreamRow]], int]:
    """The substreams of each; and of how many they cannot be read."""
    found, failed = dict[str, list[SubstreamRow]](), 0
    for job in jobs:
        try:
            found[job] = (await ctx.store.substreams(job)).rows
        except DomainError:  # deleted since, or its clock jumped
            continue
        except ResponseError as error:
            if not is_failed_script(error):
                raise
            log.error("The substreams of job %s cannot be read.", job, exc_info=error)
            failed += 1
    return found, failed
