"""The metrics of a replica and its jobs, for Prometheus."""

import asyncio
import logging
import zlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse
from prometheus_client import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from redis.exceptions import RedisError, ResponseError
from starlette.status import HTTP_200_OK

from tidegate.auth.roles import READERS
from tidegate.domain.errors import DomainError
from tidegate.domain.pattern import matches
from tidegate.domain.results import SubstreamRow
from tidegate.runtime.job_metrics import JobMetrics, Scrape, substream_metrics
from tidegate.store import shared
from tidegate.store.connection import is_failed_script
from tidegate.store.reads import Status
from tidegate.web.access import CallerOf, allowed
from tidegate.web.context import Context, ContextOf
from tidegate.web.disconnects import disconnected_answer, while_connected
from tidegate.web.problems import Problem

log = logging.getLogger(__name__)

router = APIRouter(tags=["health"])

END_OF_OPENMETRICS = b"# EOF\n"
JOBS = r"^[A-Za-z0-9._~*-]{1,128}$"
EXAMPLE = (
    "# HELP tidegate_job_watermark_timestamp_seconds Emitted watermark\n"
    "# TYPE tidegate_job_watermark_timestamp_seconds gauge\n"
    'tidegate_job_watermark_timestamp_seconds{job_name="flights"} 1.3575528e+09\n'
)
Encode = Callable[[Any], bytes]


@dataclass(slots=True)
class _Jobs:
    """What a scrape exports of jobs.

    Attributes:
        statuses: Status of each job; None if the store does not answer.
        unreadable: Number of jobs whose state cannot be read.
        substreams: Metrics of substreams.
    """

    statuses: dict[str, Status] | None
    unreadable: int
    substreams: "SubstreamText"


@router.get(
    "/metrics",
    response_class=Response,
    responses={
        HTTP_200_OK: {
            "content": {"text/plain": {"schema": {"type": "string"}, "example": EXAMPLE}},
            "description": "Metrics in the text format of Prometheus, or in OpenMetrics.",
        }
    },
    summary="Get metrics",
)
@allowed(*READERS)
async def metrics(
    request: Request,
    context: ContextOf,
    caller: CallerOf,
    substreams: Annotated[
        str | None,
        Query(
            pattern=JOBS,
            description="Pattern of jobs whose substreams to include; `*` stands for any characters.",
            examples=["flights*"],
        ),
    ] = None,
) -> Response:
    """Return the metrics of this replica, and of the jobs of the caller's prefix, which every replica exports."""
    encode, media_type = _encoder(request)
    writable = await _is_writable(context)
    jobs = await _read_jobs(request, context, caller.prefix, substreams, encode)
    if jobs is None:
        return disconnected_answer()
    job_metrics = JobMetrics(jobs.statuses, writable, jobs.unreadable, context.reader.stale_after_ms)
    scrape = Scrape(context.metrics.registry, job_metrics, caller.prefix)
    return StreamingResponse(_encoded(scrape, jobs.substreams, encode), media_type=media_type)


def _encoder(request: Request) -> tuple[Encode, str]:
    try:
        return choose_encoder(request.headers.get("accept", ""))
    except (TypeError, ValueError):  # the client asks for a version that does not exist
        return choose_encoder("")


async def _is_writable(context: Context) -> bool:
    try:
        await shared.check(context.store.redis)
    except RedisError:
        return False
    return True


async def _read_jobs(
    request: Request, context: Context, prefix: str, substreams: str | None, encode: Encode
) -> _Jobs | None:
    """Read what the scrape exports of jobs; return None if the client disconnects."""
    try:
        overview = context.overview
        statuses = await overview.statuses()
        context.metrics.keep_jobs(statuses.keys() | overview.unreadable)
        mine = {job: status for job, status in statuses.items() if job.startswith(prefix)}
        jobs = _Jobs(mine, sum(job.startswith(prefix) for job in overview.unreadable), SubstreamText(encode))
        if substreams is not None:
            selected = [job for job in mine if matches(substreams, job)]
            failed = await while_connected(request, _read_substreams(context, selected, encode, jobs.substreams))
            if failed is None:
                return None
            jobs.unreadable += failed
    except RedisError:
        # The metrics of this replica are exported still, with tidegate_store_up 0 and without substreams.
        return _Jobs(None, 0, SubstreamText(encode))
    return jobs


class SubstreamText:
    """The text of the metrics of substreams, encoded part by part.

    The format groups samples by metric, so the text is kept until all rows are read. It is compressed to about a tenth.
    """

    def __init__(self, encode: Encode) -> None:
        self._encode = encode
        self._pieces: list[tuple[bytes, list[bytes]]] = []

    def add(self, job: str, rows: Iterable[SubstreamRow]) -> None:
        """Encode the substreams of a job."""
        if not self._pieces:
            self._pieces = [(self._text(family), []) for family in substream_metrics(job, [])]
        for (header, pieces), family in zip(self._pieces, substream_metrics(job, rows), strict=True):
            pieces.append(zlib.compress(self._text(family).removeprefix(header), zlib.Z_BEST_SPEED))

    def extend(self, other: "SubstreamText") -> None:
        """Append the substreams of another text."""
        if not self._pieces:
            self._pieces = other._pieces
            return
        for (_, pieces), (_, more) in zip(self._pieces, other._pieces, strict=False):
            pieces.extend(more)

    def _text(self, family: Metric) -> bytes:
        return self._encode(_OneFamily(family)).removesuffix(END_OF_OPENMETRICS)

    def __iter__(self) -> Iterator[bytes]:
        """Yield the text in parts."""
        for header, pieces in self._pieces:
            yield header
            yield from map(zlib.decompress, pieces)


async def _read_substreams(context: Context, jobs: list[str], encode: Encode, text: SubstreamText) -> int:
    """Add the substreams of jobs to a text, one call at a time, and return the number of jobs that cannot be read.

    Raises:
        Problem: If there are more substreams than the limit.
    """
    async with context.reader.bulk_reads:
        number = sum([await context.store.reads.count_substreams(job) for job in jobs])
        limit = context.max_scraped_substreams
        if number > limit:
            detail = (
                f"substreams: {number} substreams match, over the limit of {limit}; name fewer jobs, or raise "
                "TIDEGATE_MAX_SCRAPED_SUBSTREAMS."
            )
            raise Problem("too_many_rows", detail, members={"field": "substreams"})
        failed = 0
        for job in jobs:
            of_job = SubstreamText(encode)
            try:
                async for keys in context.store.reads.substream_keys(job):
                    if keys:
                        rows = (await context.store.reads.substreams(job, keys)).rows
                        # In a thread, so that other calls are served.
                        await asyncio.to_thread(of_job.add, job, rows)
                text.extend(of_job)
            except DomainError:  # deleted since, or its clock jumped
                continue
            except ResponseError as error:
                if not is_failed_script(error):
                    raise
                log.error("Cannot read the substreams of job %s.", job, exc_info=error)
                failed += 1
        return failed


class _OneFamily(Collector):
    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterable[Metric]:
        return [self._family]


async def _encoded(scrape: Scrape, substreams: SubstreamText, encode: Encode) -> AsyncIterator[bytes]:
    """Yield the text of one metric after another, each encoded in a thread, so that other calls are served."""
    families = iter(scrape.collect())
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
