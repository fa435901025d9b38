"""A program that removes listeners over Spark Connect while events wait.

Run it with ``python -m tests.support.listening ADDRESS``.
"""

import sys
import time
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

from tidegate_spark.spark_session import add_listener

QUERIES, PAUSE_S = 5, 0.3
"""Each query has about one event in a second, more than a listener with this pause can take."""


class Slow(StreamingQueryListener):
    """A listener that pauses at each event."""

    def __init__(self) -> None:
        self.seen = 0

    def onQueryStarted(self, event: Any) -> None:
        pass

    def onQueryProgress(self, event: Any) -> None:
        time.sleep(PAUSE_S)
        self.seen += 1

    def onQueryIdle(self, event: Any) -> None:
        pass

    def onQueryTerminated(self, event: Any) -> None:
        pass


def main() -> None:
    """Add and remove a listener twice, and end the session while a third one listens."""
    spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
    for _ in range(QUERIES):
        rows = spark.readStream.format("rate").load()
        rows.writeStream.format("noop").trigger(processingTime="100 milliseconds").start()
    for number in range(3):
        listener = Slow()
        add_listener(spark, listener)
        while listener.seen < QUERIES:
            time.sleep(0.1)
        if number < 2:
            spark.streams.removeListener(listener)
        print(f"listener {number}", flush=True)
    for query in spark.streams.active:
        query.stop()
    spark.stop()


if __name__ == "__main__":
    main()
