"""What Prometheus scrapes."""

import asyncio
import logging
import zlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse
from prometheus_client import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from redis.exceptions import RedisError, ResponseError

from tidegate.api.access import READERS, Who, allowed
from tidegate.api.context import Context, Ctx
from tidegate.api.disconnects import to_nobody, while_there
from tidegate.api.problems import Problem
from tidegate.domain.errors import DomainError
from tidegate.domain.pattern import matches
from tidegate.domain.results import SubstreamRow
from tidegate.runtime.metrics import JobMetrics, Scrape, of_substreams
from tidegate.store import shared
from tidegate.store.connection import is_failed_script
from tidegate.store.reads import Status

log = logging.getLogger(__name__)

router = APIRouter(tags=["health"])

END_OF_OPENMETRICS = b"# EOF\n"
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
    unreadable = 0
    try:
        encode, kind = choose_encoder(request.headers.get("accept", ""))
    except (TypeError, ValueError):  # a version that does not exist
        encode, kind = choose_encoder("")
    table = SubstreamText(encode)
    try:
        await shared.check(ctx.store.redis)
        writable = True
    except RedisError:
        writable = False
    try:
        found = await ctx.overview.statuses()
        statuses = {job: status for job, status in found.items() if job.startswith(who.prefix)}
        unreadable = sum(job.startswith(who.prefix) for job in ctx.overview.unreadable)
        ctx.metrics.forget(found.keys() | ctx.overview.unreadable)
        if substreams is not None:
            jobs = [job for job in statuses if matches(substreams, job)]
            failed = await while_there(request, _read(ctx, jobs, encode, table))
            if failed is None:
                return to_nobody()
            unreadable += failed
    except RedisError:
        # Exported as tidegate_store_up, with this replica's own metrics, and no part of the substreams.
        statuses, table = None, SubstreamText(encode)
    jobs_metrics = JobMetrics(statuses, writable, unreadable, ctx.stale_after_ms)
    scrape = Scrape(ctx.metrics.registry, jobs_metrics, who.prefix)
    return StreamingResponse(_encoded(scrape, table, encode), media_type=kind)


Encode = Callable[[Any], bytes]


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
            self._pieces = [(self._text(family), []) for family in of_substreams(job, [])]
        for (header, pieces), family in zip(self._pieces, of_substreams(job, rows), strict=True):
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
        for header, pieces in self._pieces:
            yield header
            yield from map(zlib.decompress, pieces)


async def _read(ctx: Context, jobs: list[str], encode: Encode, table: SubstreamText) -> int:
    """Add the substreams of jobs to a text, and return the number of jobs that cannot be read.

    Calls run one at a time.

    Raises:
        Problem: 422 if there are more than may be exported.
    """
    async with ctx.bulk_reads:
        number = sum([await ctx.store.reads.count_substreams(job) for job in jobs])
        if number > ctx.max_scraped_substreams:
            raise Problem(
                422,
                "too_many_rows",
                f"substreams: {number} substreams match, and at most {ctx.max_scraped_substreams} are exported; "
                "name fewer jobs, or raise TIDEGATE_MAX_SCRAPED_SUBSTREAMS.",
                members={"field": "substreams"},
            )
        failed = 0
        for job in jobs:
            of_job = SubstreamText(encode)
            try:
                async for keys in ctx.store.reads.substream_keys(job):
                    if keys:
                        rows = (await ctx.store.reads.substreams(job, keys)).rows
                        # In a thread, so that other calls are served.
                        await asyncio.to_thread(of_job.add, job, rows)
                table.extend(of_job)
            except DomainError:  # deleted since, or its clock jumped
                continue
            except ResponseError as error:
                if not is_failed_script(error):
                    raise
                log.error("The substreams of job %s cannot be read.", job, exc_info=error)
                failed += 1
        return failed


class _OneFamily(Collector):
    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterable[Metric]:
        return [self._family]


async def _encoded(scrape: Scrape, table: SubstreamText, encode: Encode) -> AsyncIterator[bytes]:
    """Yield the text of one metric after another; each is made in a thread, so that other calls are served."""
    families = iter(scrape.collect())
    ended = False
    while (family := await asyncio.to_thread(next, families, None)) is not None:
        text = await asyncio.to_thread(encode, _OneFamily(family))
        ended = text.endswith(END_OF_OPENMETRICS)
        yield text.removesuffix(END_OF_OPENMETRICS)
    for text in table:
        yield text
        await asyncio.sleep(0)  # other calls come first
    if ended:
        yield END_OF_OPENMETRICS
