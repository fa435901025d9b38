"""The watermark of the job in tables: ``publish_watermark`` writes it after the commit, also if no batch comes."""

import atexit
import threading
from collections.abc import Sequence
from typing import Any

from pyspark.sql import SparkSession

from tidegate_spark.claims import PublishedWatermark
from tidegate_spark.logs import FailureLog, QueryLog
from tidegate_spark.tables import Table, table_on

RETRY_S = 5.0
"""Shortest pause in seconds after a failure."""
CLOSE_S = 60.0
"""Maximum time in seconds that the end of a query waits for its last watermark to be published."""


class WatermarkPublisher:
    """A thread that writes the latest watermark of a job into tables.

    A table may be slow, or its catalog may be down, so neither batches nor heartbeats wait for it. A watermark that
    comes while an earlier one is being published replaces those before it.

    Args:
        spark: The session.
        job: Name of the job.
        names: The tables.
        every_s: Shortest time in seconds between two watermarks.
        log: The log of the query.
    """

    def __init__(self, spark: SparkSession, job: str, names: Sequence[str], every_s: float, log: QueryLog) -> None:
        self._spark, self._job, self._names, self._every_s = spark, job, names, every_s
        self._tables: dict[str, Table] = {}
        self._changed = threading.Condition()
        self._latest: PublishedWatermark | None = None
        self._is_closed = threading.Event()
        fails, succeeds = "the watermark cannot be published in {}", "the watermark is published in {} again"
        self._failures = {name: FailureLog(log, fails.format(name), succeeds.format(name)) for name in names}
        self._thread: threading.Thread | None = None

    def offer(self, watermark: int | None, incarnation: int) -> None:
        """Publish a watermark soon, unless it or a higher one was offered."""
        if watermark is None or not self._names:
            return
        offered = PublishedWatermark(self._job, incarnation, watermark)
        with self._changed:
            before = self._latest
            if before is not None and (before.incarnation, before.watermark) >= (incarnation, watermark):
                return
            self._latest = offered
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="tidegate-publisher", daemon=True)
                self._thread.start()
                atexit.register(self.close)  # a program may end with its query, before the last watermark is published
            self._changed.notify()

    def close(self) -> None:
        """Publish the latest watermark if it is not published yet, and stop."""
        self._is_closed.set()
        with self._changed:
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(CLOSE_S)
        # Not before: this may run on a daemon thread, for which the end of the program does not wait.
        atexit.unregister(self.close)

    def _run(self) -> None:
        published: PublishedWatermark | None = None
        while True:
            with self._changed:
                self._changed.wait_for(lambda before=published: self._latest != before or self._is_closed.is_set())  # type: ignore[misc]
                latest = self._latest
            if latest is None or latest == published:
                return
            is_last = self._is_closed.is_set()
            failed = [name for name in self._names if not self._publish(name, latest)]
            if not failed:
                published = latest
                self._is_closed.wait(self._every_s)
            elif is_last:
                return
            else:
                self._is_closed.wait(max(self._every_s, RETRY_S))

    def _publish(self, name: str, watermark: PublishedWatermark) -> bool:
        """Write a watermark into a table; return False if this fails, and may succeed later."""
        # Py4J, Spark and the catalog each have their own errors.
        try:
            table = self._tables.get(name) or table_on(self._spark, name)
            table.publish(watermark)
        except Exception as error:  # noqa: BLE001
            context: Any = self._spark.sparkContext
            if context._jsc is not None:  # else the program has stopped the session, and ends
                self._failures[name].failed(error)
            return False
        self._tables[name] = table
        self._failures[name].succeeded()
        return True
