"""Queries on topics of a broker, and what they have read."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from tests.support.streams import Sink
from tests.support.waiting import until as until_soon
from tidegate_spark import Job

until = partial(until_soon, timeout_s=300)  # Spark's consumer waits half a second for each partition without new rows
TIMEOUT = timedelta(seconds=2)
START = 1_700_000_400_000
HOUR = 3_600_000


@contextmanager
def running(
    job: Job, df: DataFrame, sink: Sink, checkpoint: str, substream: tuple[str, ...] = ("topic", "partition")
) -> Iterator[StreamingQuery]:
    """Run the query ``q``, which writes to a sink; stop it at the end of the block."""
    stream = sink.after(job.stream(df, event_time="t", substream=list(substream)))
    query = stream.trigger(processingTime="200 milliseconds").start(queryName="q", checkpointLocation=checkpoint)
    try:
        yield query
    finally:
        query.stop()


def states(job: Job) -> dict[str, str]:
    """Return the state of each substream."""
    return {row["substream"]: row["state"] for row in job.substreams()}


def count(sink: Sink) -> int:
    """Return the number of rows that were written, late ones included."""
    return sum(map(len, sink.on_time.values())) + late(sink)


def late(sink: Sink) -> int:
    """Return the number of late rows."""
    return sum(map(len, sink.late.values()))
