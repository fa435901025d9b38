"""The queries of a job, and their batches."""

from pydantic import Field

from tidegate.domain.errors import QueryNotFound
from tidegate.domain.views import QueryStatus
from tidegate.store import replies
from tidegate.views.reader import Reader
from tidegate.views.watermark import WatermarkState

QUERY_ID = Field(description="Id of the query's checkpoint.", examples=["7d1f5c5e-9a0b-4a7e-8f63-0c3f3a1d2b4c"])


class QueryTable(WatermarkState):
    """The queries of a job."""

    queries: list[QueryStatus] = Field(description="Queries, sorted by name.")


class BatchStatus(WatermarkState):
    """A batch of a query."""

    query: str = Field(description="Name of the query.", examples=["departures"])
    query_id: str = QUERY_ID
    batch_id: int = Field(description="Number of the batch.", examples=[41])
    pinned_watermark: int | None = Field(
        description="Watermark by which the rows of the batch are classified, in every replay. If null, no row is "
        "late.",
        examples=[1357552800000],
    )
    open: bool = Field(description="Whether the batch is open.", examples=[True])
    released: bool = Field(
        description="Whether the batch is open, but a limit let the watermark pass it.",
        examples=[False],
    )
    begun_ms: int | None = Field(
        description="Processing time at which the batch began. Null for all batches but the latest.",
        examples=[1357554640000],
    )


async def read_queries(reader: Reader, job: str) -> QueryTable:
    """Return the queries of a job.

    Raises:
        JobNotFound: If the job does not exist.
        JobDeleted: If the job was deleted.
    """
    return query_table(reader, job, await reader.store.reads.queries(job))


def query_table(reader: Reader, job: str, table: replies.QueriesReply) -> QueryTable:
    """Return the table of a job's queries as a record."""
    return QueryTable(**reader.members(job, table.state), queries=table.rows)


async def read_batch(reader: Reader, job: str, query: str, batch_id: int) -> BatchStatus | None:
    """Return a batch, or None if it never began or the store no longer keeps its pinned watermark.

    Raises:
        JobNotFound: If the job does not exist.
        JobDeleted: If the job was deleted.
        QueryNotFound: If the job has no such query.
    """
    table = await reader.store.reads.queries(job)
    row = next((row for row in table.rows if row.query == query), None)
    if row is None:
        raise QueryNotFound(query)
    pinned_watermark = await reader.store.reads.pinned_watermark(job, query, batch_id)
    if pinned_watermark is None:
        return None
    latest = row.batch_id == batch_id
    return BatchStatus(
        **reader.members(job, table.state),
        query=query,
        query_id=row.query_id,
        batch_id=batch_id,
        pinned_watermark=pinned_watermark.value,
        open=latest and row.batch_open,
        released=latest and row.batch_released,
        begun_ms=row.begun_ms if latest else None,
    )
