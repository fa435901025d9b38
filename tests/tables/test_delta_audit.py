"""The audit of a query that reads a table of Delta Lake: its first version, later ones, and compactions."""

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.support.lake import Lake
from tidegate_spark import InvalidUsage, audit

BASE = datetime(2013, 1, 1, tzinfo=UTC).timestamp()


def rows(lake: Lake, turn: int, chosen: random.Random) -> DataFrame:
    """Return rows of two substreams. The second one is a minute behind the first."""
    values = [("ab"[k], int(BASE + 40 * turn - 60 * k + chosen.randrange(40))) for k in (0, 1) for _ in range(6)]
    return lake.rows(*values).repartition(2)


@pytest.mark.parametrize("files", [1, 3])
def test_the_audit_counts_what_the_output_lacks(spark: SparkSession, tmp_path: Path, files: int) -> None:
    lake, chosen, kept = Lake(spark, "delta", tmp_path), random.Random(files), {}  # noqa: S311 - no secret
    checkpoint, turns = tmp_path / "checkpoint", iter(range(100))

    def write(df: DataFrame, batch_id: int) -> None:
        kept.update({(row.k, row.window.start): row["count"] for row in df.collect()})

    def run() -> None:
        stream = spark.readStream.format("delta").option("maxFilesPerTrigger", files).load(lake.name)
        timed = stream.withColumn("at", F.timestamp_seconds("t")).withWatermark("at", "10 seconds")
        query = timed.groupBy(F.window("at", "20 seconds"), "k").count().writeStream.outputMode("update")
        query = query.foreachBatch(write).option("checkpointLocation", str(checkpoint))
        query.trigger(availableNow=True).start().awaitTermination()

    given = 0
    for _ in range(3):
        for _ in range(3):
            lake.append(rows(lake, next(turns), chosen))
            given += 12
        run()
        lake.compact()
    arguments: dict[str, Any] = {
        "event_time": "timestamp_seconds(t)",
        "substream": "k",
        "window": timedelta(seconds=20),
    }
    found = audit(spark, str(checkpoint), table=lake.name, **arguments)
    assert (found.kinds, found.differences, found.missing) == (("delta",), (), ())
    assert found.losses.total.rows == given
    assert found.losses.total.least == found.losses.total.most == given - sum(kept.values()) > 0
    with pytest.raises(InvalidUsage, match="whose path the checkpoint does not have"):
        audit(spark, str(checkpoint), **arguments)
    with pytest.raises(InvalidUsage, match="no folder _delta_log"):
        audit(spark, str(checkpoint), table=str(tmp_path), **arguments)
