"""Helpers for tests of queries: rows, runs to the end of the input, and a sink."""

from datetime import timedelta
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from tests.support.local import LocalCoordinator
from tidegate_spark import Batch, Committed, Job, JobMissing, Stream
from tidegate_spark.testing import FileBatches

LAG = timedelta(seconds=10)


def rows(*pairs: tuple[str | None, int | None]) -> list[dict[str, Any]]:
    return [{"k": k, "t": t} for k, t in pairs]


def to_the_end(stream: Stream, checkpoint: str, query: str = "q", timeout_s: int = 120) -> None:
    """Run a query over all available input."""
    running = stream.trigger(availableNow=True).start(queryName=query, checkpointLocation=checkpoint)
    assert running.awaitTermination(timeout_s)


def kill(own: LocalCoordinator, empties: bool) -> None:
    """Stop a coordinator; with ``empties``, also delete its state in Redis."""
    own.stop()
    if empties:
        own.empty()


class Backup:
    """The state of a coordinator's Redis at one moment."""

    def __init__(self, own: LocalCoordinator) -> None:
        self.own, self.state = own, own.state()

    def restore(self) -> None:
        """Restore the state and lose all later changes."""
        self.own.stop()
        self.own.restore(self.state)
        self.own.start()


def known(job: Job) -> dict[str, int | None]:
    """Return the max event time of each substream; an empty dict if the job is lost."""
    try:
        return {row["substream"]: row["max_event_time"] for row in job.substreams()}
    except JobMissing:
        return {}


class Sink:
    """A sink that keeps the arguments of the user's functions by batch."""

    def __init__(self) -> None:
        self.on_time: dict[int, list[tuple[str | None, int | None]]] = {}
        self.late: dict[int, list[tuple[str | None, int | None]]] = {}
        self.pinned_watermarks: dict[int, int | None] = {}
        self.committed: list[Committed] = []

    def write(self, df: DataFrame, batch_id: int, batch: Batch) -> None:
        self.on_time[batch_id] = sorted(((row.k, row.t) for row in df.collect()), key=str)
        self.pinned_watermarks[batch_id] = batch.watermark

    def write_late(self, df: DataFrame, batch_id: int) -> None:
        self.late[batch_id] = sorted(((row.k, row.t) for row in df.collect()), key=str)

    def after(self, stream: Stream) -> Stream:
        """Return the stream with this sink."""
        return stream.foreach_batch(self.write).late_output(self.write_late).on_commit(self.committed.append)


def stream_of(spark: SparkSession, job: Job, source: FileBatches, sink: Sink) -> Stream:
    """Return a stream with a sink. Column ``t`` has the event times, column ``k`` the substreams."""
    return sink.after(job.stream(source.stream(spark), event_time="t", substream="k"))
