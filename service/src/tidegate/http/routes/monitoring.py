"""The probes of a replica, and the metrics of a replica and its jobs for Prometheus."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from itertools import chain
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse
from prometheus_client import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from pydantic import Field
from redis.exceptions import RedisError, ResponseError
from starlette.status import HTTP_200_OK

from tidegate.auth.roles import READERS
from tidegate.domain.errors import DomainError
from tidegate.domain.values import ID_CHARACTERS, matches
from tidegate.domain.views import SubstreamStatus
from tidegate.http.bodies import json_answer
from tidegate.http.problems import Problem
from tidegate.http.request import CallerOf, Context, ContextOf, allowed, while_connected
from tidegate.runtime.metrics import job_metrics, replica_metrics, store_metrics, substream_metrics
from tidegate.store.connection import is_failed_function
from tidegate.store.functions import ServerState
from tidegate.store.replies import Status
from tidegate.views.holders import read_shares
from tidegate.views.types import Answer

log = logging.getLogger(__name__)

router = APIRouter(tags=["health"])


class Liveness(Answer):
    """The answer of a live process."""

    status: Literal["alive"] = Field(default="alive", description="Always `alive`.", examples=["alive"])


class Readiness(Answer):
    """The answer of a replica that can serve calls."""

    status: Literal["ready"] = Field(default="ready", description="Always `ready`.", examples=["ready"])


@router.get("/livez", response_model=Liveness, summary="Check that the process is alive")
@allowed()
async def livez() -> Response:
    """Answer without checking Redis, because a restart of the replica would not repair Redis."""
    return json_answer(Liveness())


@router.get("/readyz", response_model=Readiness, summary="Check that the replica can serve calls")
@allowed()
async def readyz(context: ContextOf) -> Response:
    """Check that Redis answers, runs functions and accepts writes."""
    await context.store.check()
    return json_answer(Readiness())


END_OF_OPENMETRICS = b"# EOF\n"
JOBS = rf"^[*{ID_CHARACTERS}]{{1,128}}$"
EXAMPLE = (
    "# HELP tidegate_job_watermark_timestamp_seconds Emitted watermark\n"
    "# TYPE tidegate_job_watermark_timestamp_seconds gauge\n"
    'tidegate_job_watermark_timestamp_seconds{job_name="flights"} 1.3575528e+09\n'
)
TEXT: dict[int | str, dict[str, Any]] = {
    HTTP_200_OK: {
        "content": {"text/plain": {"schema": {"type": "string"}, "example": EXAMPLE}},
        "description": "Metrics in the text format of Prometheus, or in OpenMetrics.",
    }
}
HOLDERS = 3
"""Number of holders of each job in the metrics."""
Encode = Callable[[Any], bytes]


@router.get("/metrics", response_class=Response, responses=TEXT, summary="Get metrics")
@allowed(*READERS)
async def metrics(
    request: Request,
    context: ContextOf,
    caller: CallerOf,
    substreams: Annotated[
        str | None,
        Query(
            pattern=JOBS,
            description="Pattern of the jobs whose substreams to include. `*` stands for any characters.",
            examples=["flights*"],
        ),
    ] = None,
) -> Response:
    """Return the metrics of this replica and of the jobs with the caller's prefix. Every replica exports all jobs."""
    encode, media_type = _encoder(request)
    servers = await _servers(context)
    statuses: dict[str, Status] | None
    try:
        statuses, unreadable = await _read_statuses(context, caller.prefix)
        now_ms = {job: status.state.now_ms for job, status in statuses.items() if not status.state.complete}
        held = await read_shares(context.reader, now_ms, HOLDERS)
        text, failed = SubstreamText(encode), 0
        if substreams is not None:
            selected = [job for job in statuses if matches(substreams, job)]
            failed = await while_connected(request, _read_substreams(context, selected, text))
    except RedisError:
        # The answer then has only the metrics of this replica, and tidegate_store_up 0.
        statuses, held, unreadable, text, failed = None, {}, 0, SubstreamText(encode), 0
    families = chain(
        replica_metrics(context.metrics.registry, caller.prefix),
        store_metrics(servers, is_up=statuses is not None and bool(servers) and not any(of.error for of in servers)),
        job_metrics(statuses, held, unreadable + failed, context.reader.stale_after_ms),
    )
    return StreamingResponse(_encoded(families, text, encode), media_type=media_type)


def _encoder(request: Request) -> tuple[Encode, str]:
    try:
        return choose_encoder(request.headers.get("accept", ""))
    except (TypeError, ValueError):  # the client asks for a version that does not exist
        return choose_encoder("")


async def _servers(context: Context) -> list[ServerState]:
    """Return the state of each server, or an empty list if no server answers."""
    try:
        return await context.store.states()
    except RedisError:
        return []


async def _read_statuses(context: Context, prefix: str) -> tuple[dict[str, Status], int]:
    """Return the status of each job with a prefix, and the number of such jobs that cannot be read."""
    overview = context.overview
    statuses = await overview.statuses()
    context.metrics.keep_jobs(statuses.keys() | overview.unreadable)
    mine = {job: status for job, status in statuses.items() if job.startswith(prefix)}
    return mine, sum(job.startswith(prefix) for job in overview.unreadable)


class SubstreamText:
    """The text of the metrics of substreams, encoded in parts.

    The format groups samples by metric, so all parts stay in memory until the last row is read.
    """

    def __init__(self, encode: Encode) -> None:
        self._encode = encode
        self._headers = [self._text(family) for family in substream_metrics("", [])]
        self._parts: list[list[bytes]] = []

    def encoded(self, job: str, rows: Iterable[SubstreamStatus]) -> list[bytes]:
        """Return the samples of some substreams of a job, by metric."""
        texts = [self._text(family) for family in substream_metrics(job, rows)]
        return [text.removeprefix(header) for text, header in zip(texts, self._headers, strict=True)]

    def add(self, parts: Iterable[list[bytes]]) -> None:
        """Add encoded samples to the text."""
        self._parts.extend(parts)

    def _text(self, family: Metric) -> bytes:
        return self._encode(_OneFamily(family)).removesuffix(END_OF_OPENMETRICS)

    def __iter__(self) -> Iterator[bytes]:
        """Yield the text in parts."""
        for header, samples in zip(self._headers, zip(*self._parts, strict=True), strict=False):
            yield header
            yield from samples


async def _read_substreams(context: Context, jobs: list[str], text: SubstreamText) -> int:
    """Add the substreams of jobs to a text, and return the number of jobs that cannot be read.

    A lock admits one call at a time, to limit the use of memory.

    Raises:
        Problem: If the jobs have more substreams than the limit.
    """
    async with context.reader.bulk_reads:
        number, failed = 0, 0
        for job in list(jobs):
            try:
                number += await context.store.reads.count_substreams(job)
            except ResponseError as error:
                _log_unreadable(job, error)
                jobs.remove(job)
                failed += 1
        limit = context.max_scraped_substreams
        if number > limit:
            detail = (
                f"substreams: {number} substreams match, over the limit of {limit}; name fewer jobs, or raise "
                "TIDEGATE_MAX_SCRAPED_SUBSTREAMS."
            )
            raise Problem("too_many_rows", detail, members={"field": "substreams"})
        for job in jobs:
            try:
                text.add(await _encoded_substreams(context, job, text))
            except DomainError:  # the job was deleted, or the clock jumped
                continue
            except ResponseError as error:
                _log_unreadable(job, error)
                failed += 1
        return failed


def _log_unreadable(job: str, error: ResponseError) -> None:
    """Log the error of a job whose keys are damaged; raise an error of the server."""
    if not is_failed_function(error):
        raise error
    log.error("Cannot read the substreams of job %s.", job, exc_info=error)


async def _encoded_substreams(context: Context, job: str, text: SubstreamText) -> list[list[bytes]]:
    parts = []
    async for keys in context.store.reads.substream_keys(job):
        if keys:
            rows = (await context.store.reads.substreams(job, keys)).rows
            # A thread encodes the rows, so that the replica can serve other calls.
            parts.append(await asyncio.to_thread(text.encoded, job, rows))
    return parts


class _OneFamily(Collector):
    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterable[Metric]:
        return [self._family]


async def _encoded(families: Iterator[Metric], substreams: SubstreamText, encode: Encode) -> AsyncIterator[bytes]:
    """Yield the text of each metric. A thread encodes the text, so that the replica can serve other calls."""
    has_end = False
    while (family := await asyncio.to_thread(next, families, None)) is not None:
        text = await asyncio.to_thread(encode, _OneFamily(family))
        has_end = text.endswith(END_OF_OPENMETRICS)
        yield text.removesuffix(END_OF_OPENMETRICS)
    for text in substreams:
        yield text
        await asyncio.sleep(0)  # let other calls run
    if has_end:
        yield END_OF_OPENMETRICS
