"""What Kafka's brokers tell about partitions, and Spark does not: their ends and their first offsets.

Under ``read_committed``, a reader sees a partition up to its *last stable offset*, the first record of an open
transaction. The latest offset in Spark is this offset, so an open transaction looks like silence. If Kafka has deleted
records that were not read, a batch has fewer rows than offsets, as it also has after compaction.
"""

import json
import re
import threading
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from pyspark.sql import SparkSession

from tidegate_spark.sources.offsets import Partition, SourceOffsets, partitions_of

TIMEOUT_S = 5
_RESULT = re.compile(r"([\w.-]+)-(\d+)=ListOffsetsResultInfo\(offset=(\d+)")


class Brokers:
    """The brokers of a source of Kafka, asked by the admin client of Spark's connector.

    Args:
        spark: A classic session.
        settings: The settings of the client: the options of the source without the prefix ``kafka.``.
    """

    def __init__(self, spark: SparkSession, settings: Mapping[str, str]) -> None:
        self._jvm: Any = spark._jvm
        self._settings = settings
        self._admin: Any = None
        self._asked: dict[str, tuple[frozenset[Partition], Any]] = {}
        self._lock = threading.Lock()  # the threads of batches and of heartbeats read

    def ends(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        """Return the offset after the last record of each partition, committed or not."""
        return self._list("latest", partitions)

    def firsts(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        """Return the offset of the first record that each partition still has."""
        return self._list("earliest", partitions)

    def _list(self, which: str, partitions: Collection[Partition]) -> dict[Partition, int]:
        if not partitions:
            return {}
        with self._lock:
            return self._list_alone(which, frozenset(partitions))

    def _list_alone(self, which: str, partitions: frozenset[Partition]) -> dict[Partition, int]:
        kafka = self._jvm.org.apache.kafka
        admin = kafka.clients.admin
        if self._admin is None:
            properties = self._jvm.java.util.Properties()
            for name, value in self._settings.items():
                properties.setProperty(name, value)
            self._admin = admin.Admin.create(properties)
        known, asked = self._asked.get(which, (None, None))
        if known != partitions:
            spec, asked = getattr(admin.OffsetSpec, which)(), self._jvm.java.util.HashMap()
            for topic, number in partitions:
                asked.put(kafka.common.TopicPartition(topic, number), spec)
            self._asked[which] = partitions, asked
        uncommitted = admin.ListOffsetsOptions(kafka.common.IsolationLevel.READ_UNCOMMITTED)
        answer = self._admin.listOffsets(asked, uncommitted).all()
        # As a text, the answer is one call of the JVM instead of several for each partition.
        text = str(answer.get(TIMEOUT_S, self._jvm.java.util.concurrent.TimeUnit.SECONDS).toString())
        return {(topic, int(number)): int(offset) for topic, number, offset in _RESULT.findall(text)}

    def close(self) -> None:
        """Close the client."""
        if self._admin is not None:
            self._admin.close(self._jvm.java.time.Duration.ZERO)
            self._admin = None


def with_ends(source: SourceOffsets, ends: Mapping[Partition, int]) -> SourceOffsets:
    """Return the offsets of a source of Kafka with the latest offsets replaced by the ends of its partitions.

    A batch may end after an end that was read before the batch was planned. A partition that was unknown then had no
    records.
    """
    end = partitions_of(source.end)
    if end is None or source.latest is None:
        return source
    latest: dict[str, dict[str, int]] = {}
    for (topic, number), offset in end.items():
        latest.setdefault(topic, {})[str(number)] = max(offset, ends.get((topic, number), 0))
    return replace(source, latest=json.dumps(latest))
