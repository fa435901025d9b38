"""Measurement of delays, in buckets.

A delay is the max event time of a row's substream minus the row's event time. The coordinator computes the completeness
curve and the lags of ``target_completeness`` from the delays. Late rows are measured too. Without them, the result
would depend on the current lag.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from tidegate_spark.config import JobConfig
from tidegate_spark.frame import Frame
from tidegate_spark.hook.classify import credible
from tidegate_spark.spark_session import from_arrow
from tidegate_spark.substreams import values_of

GAMMA = 101 / 99
"""Ratio of the bounds of a bucket, for a relative error of 1%."""
HIGHEST_BUCKET = 1838

DelayOrder = Literal["batch", "row"]
"""Reference of a delay: the max event time of the substream before the batch, or before the row."""

POLICY = "target_completeness"


def needs_delays(config: JobConfig) -> bool:
    """Return whether a policy of the configuration uses measured delays."""
    policies = [config.get("policy"), *(override["policy"] for override in config.get("overrides") or ())]
    return any(policy is not None and policy["type"] == POLICY for policy in policies)


@dataclass(frozen=True, slots=True)
class DelayMeasurement:
    """The measurement of the delays of one batch.

    Attributes:
        order: See :data:`DelayOrder`.
        max_event_times: The max event time of each substream before the batch. If ``order`` is ``batch``,
            rows of a substream without an entry have no delay. If ``order`` is ``row``, only the first such row in each
            task has no delay.
        frame: The windows by which rows are classified. The last moment of a row's first window then replaces the row's
            event time. None if rows are classified by their event times.
    """

    order: DelayOrder
    max_event_times: Mapping[str, int]
    frame: Frame | None

    @classmethod
    def of(cls, order: DelayOrder, config: JobConfig, max_event_times: Mapping[str, int]) -> "DelayMeasurement":
        """Return the measurement for a job. With the throttle ``frame``, its windows classify the rows."""
        frame, throttle = None, config.get("throttle") or {}
        if throttle.get("type") == "frame":
            slide = throttle.get("slide_ms") or throttle["size_ms"]
            frame = Frame(throttle["size_ms"], slide, throttle.get("offset_ms", 0))
        return cls(order, max_event_times, frame)

    def with_buckets(self, rows: DataFrame, keys: list[str]) -> DataFrame:
        """Add the column ``bucket`` to rows with the columns ``time`` and ``latest``.

        The bucket of a row without a delay is null, as that of a row whose event time is not credible.
        """
        within = F.expr(credible("time", "latest"))
        time = self._judged_at(within)
        if self.order == "row":
            known = {values_of(name, len(keys)): time_ for name, time_ in self.max_event_times.items()}
            source = rows.withColumn("judged_at", time)
            schema = StructType([*source.schema.fields, StructField("bucket", LongType())])
            return source.mapInArrow(_in_order(keys, known), schema)
        joined = self._with_max_event_times(rows, keys)
        delay = F.col("max_event_time_before") - time
        logarithm = F.ceil(F.log(delay.cast("double")) / F.lit(math.log(GAMMA))) + 1
        bucket = F.when(delay > 0, F.least(logarithm, F.lit(HIGHEST_BUCKET))).when(delay <= 0, F.lit(0))
        return joined.withColumn("bucket", bucket.cast("long"))

    def _judged_at(self, time: Column) -> Column:
        if self.frame is None:
            return time
        slide, offset = F.lit(self.frame.slide), F.lit(self.frame.offset)
        return time - F.pmod(time - offset, slide) + slide - F.lit(1)

    def _with_max_event_times(self, rows: DataFrame, keys: list[str]) -> DataFrame:
        names = [f"of_{key}" for key in keys]
        max_event_times = F.broadcast(self._table(rows.sparkSession, names))
        if not keys:
            return rows.crossJoin(max_event_times)
        same = (F.col(key).eqNullSafe(F.col(name)) for key, name in zip(keys, names, strict=True))
        return rows.join(max_event_times, reduce(Column.__and__, same), "left")

    def _table(self, spark: SparkSession, names: list[str]) -> DataFrame:
        """Return the max event times as a relation, so that every batch has the same plan."""
        rows = [values_of(name, len(names)) for name in self.max_event_times]
        columns = {name: pa.array([row[at] for row in rows], pa.string()) for at, name in enumerate(names)}
        max_event_times: list[int | None] = list(self.max_event_times.values())
        if not names:  # a cross join needs one row
            max_event_times = [max(self.max_event_times.values(), default=None)]
        times = pa.array(max_event_times, pa.int64())
        return from_arrow(spark, pa.table({**columns, "max_event_time_before": times}))


Key = tuple[str | None, ...]


def _in_order(
    keys: list[str], max_event_times: Mapping[Key, int]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function for ``mapInArrow`` that measures each row against the rows that the task has read before."""

    def measure(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import numpy as np

        reached = dict(max_event_times)
        for batch in batches:
            group, values = _groups(batch, keys)
            judged_at = batch.column("judged_at")
            known = judged_at.is_valid().to_numpy(zero_copy_only=False)
            times = judged_at.fill_null(0).to_numpy().astype("int64")
            seen = batch.column("time").fill_null(0).to_numpy().astype("int64")
            bucket = np.full(batch.num_rows, -1, "int64")
            order = np.argsort(group, kind="stable")
            for part in np.split(order, np.flatnonzero(np.diff(group[order])) + 1):
                rows = part[known[part]]
                if len(rows):
                    key = values[group[rows[0]]]
                    measured, reached[key] = _buckets(times[rows], seen[rows], reached.get(key))
                    bucket[rows[len(rows) - len(measured) :]] = measured
            columns = [*batch.columns, pa.array(bucket, mask=bucket < 0)]
            yield pa.RecordBatch.from_arrays(columns, names=[*batch.schema.names, "bucket"])

    return measure


def _buckets(times: Any, seen: Any, max_event_time: int | None) -> tuple[Any, int]:
    """Return the buckets of one substream's rows in their order, and the substream's max event time after these rows.

    Args:
        times: The time by which each row is classified: its event time, or the last moment of its first window.
        seen: The event time of each row.
        max_event_time: Max event time of the substream before these rows. If it is None, the first row has no bucket.
    """
    import numpy as np

    before = np.empty(len(seen), "int64")
    before[1:] = np.maximum.accumulate(seen)[:-1]
    if max_event_time is None:
        first = 1
    else:
        first, before[0] = 0, max_event_time
        before = np.maximum(before, max_event_time)
    delay = (before - times)[first:]
    positive = np.maximum(delay, 1).astype("float64")
    found = np.minimum(np.ceil(np.log(positive) / math.log(GAMMA)) + 1, HIGHEST_BUCKET).astype("int64")
    highest = int(seen.max())
    return np.where(delay > 0, found, 0), highest if max_event_time is None else max(max_event_time, highest)


def _groups(batch: pa.RecordBatch, keys: list[str]) -> tuple[Any, list[Key]]:
    """Return the group number of each row, and the keys of each group."""
    import numpy as np

    group = np.zeros(batch.num_rows, "int64")
    values: list[Key] = [()]
    for key in keys:
        encoded = batch.column(key).dictionary_encode(null_encoding="encode")
        words = encoded.dictionary.to_pylist()
        combined = group * len(words) + encoded.indices.to_numpy(zero_copy_only=False)
        distinct, group = np.unique(combined, return_inverse=True)
        values = [(*values[at // len(words)], words[at % len(words)]) for at in distinct]
    return group, values
