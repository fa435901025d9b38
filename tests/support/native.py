"""Queries with native operators that follow the job's watermark, and the rows that they wrote."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from tidegate_spark import Job

TEN = timedelta(seconds=10)
START = datetime(2024, 1, 1, tzinfo=UTC)


def at(second: float) -> str:
    """Return the event time at this second of the stream, as a JSON string."""
    return (START + timedelta(seconds=second)).isoformat()


def ms(second: float) -> int:
    return int((START + timedelta(seconds=second)).timestamp() * 1000)


def seconds(moment: datetime) -> float:
    """Return the second of the stream for a local time without a zone, as Spark returns it."""
    return (moment.astimezone(UTC) - START).total_seconds()


def rows(*pairs: tuple[str | None, float | None]) -> list[dict[str, Any]]:
    return [{"k": k, "t": None if second is None else at(second)} for k, second in pairs]


class Out:
    """The rows that a query wrote, by batch."""

    def __init__(self) -> None:
        self.rows: dict[int, list[Any]] = {}

    def write(self, df: DataFrame, batch_id: int) -> None:
        if found := df.collect():
            self.rows[batch_id] = found

    def all(self) -> list[Any]:
        return [row for batch in sorted(self.rows) for row in self.rows[batch]]

    def windows(self) -> dict[tuple[float, str], int]:
        """Return the counts by start of the window and ``k``; fail if a window was written twice."""
        found = [((seconds(row.window.start), row.k), row["count"]) for row in self.all()]
        assert len(dict(found)) == len(found)
        return dict(found)


def start(df: DataFrame, out: Out, checkpoint: str, **trigger: Any) -> StreamingQuery:
    writer = df.writeStream.foreachBatch(out.write).outputMode("append")
    if trigger:
        writer = writer.trigger(**trigger)
    return writer.start(checkpointLocation=checkpoint)


def to_the_end(df: DataFrame, checkpoint: str) -> Out:
    out = Out()
    query = start(df, out, checkpoint, availableNow=True)
    assert query.awaitTermination(120)
    return out


def native(job: Job, df: DataFrame, checkpoint: str, **more: Any) -> DataFrame:
    options = {"substream": "k", "queryName": "q"} | more
    return job.with_watermark(df, event_time="t", checkpointLocation=checkpoint, **options)


def tens(df: DataFrame) -> DataFrame:
    """Return counts in windows of ten seconds by ``k``."""
    return df.groupBy(F.window("t", "10 seconds"), "k").count()


def watermarks(checkpoint: str) -> dict[int, int]:
    """Return the watermark of each batch from Spark's offset log."""
    found = {}
    for path in Path(checkpoint, "offsets").iterdir():
        if path.name.isdigit():
            found[int(path.name)] = json.loads(path.read_text().splitlines()[1])["batchWatermarkMs"]
    return found
