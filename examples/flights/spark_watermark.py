"""The native query: the flights per origin and hour with Spark's own ``withWatermark``, for comparison."""

from datetime import timedelta
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from examples.flights.files import BatchFiles


class NativeDepartures:
    """The native query and its counts of flights per origin and hour. The last update of an hour is its final count.

    The difference between the input rows and these counts is the number of lost rows. Spark's own metric of dropped
    rows is too low, because Spark counts dropped rows after a partial aggregation.
    """

    def __init__(self, out: Path) -> None:
        self.updates = BatchFiles(out / "state" / "native", ".json")

    def start(self, flights: DataFrame, checkpoint: Path, lag: timedelta) -> StreamingQuery:
        counts = (
            flights.withWatermark("departed_at", f"{int(lag.total_seconds())} seconds")
            .groupBy("origin", F.window("departed_at", "1 hour").alias("hour"))
            .count()
        )
        return (
            counts.writeStream.outputMode("update")
            .foreachBatch(self._write)
            .queryName("native")
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )

    def counted(self) -> int:
        """Return the number of rows in the final counts."""
        final: dict[tuple[str, int], int] = {}
        for batch_id in self.updates.ids():
            for origin, hour, count in self.updates.read_json(batch_id):
                final[origin, hour] = count
        return sum(final.values())

    def _write(self, df: DataFrame, batch_id: int) -> None:
        rows = df.select("origin", F.unix_millis("hour.start").alias("hour"), "count").collect()
        self.updates.write_json(batch_id, [list(row) for row in rows])
