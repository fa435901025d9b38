"""How far rows come behind the top that their substream had, in buckets, as a coordinator takes them.

It is what its curve of completeness is made of, and lags that are learnt from it. Late rows count as all others do:
otherwise what is measured would follow from the lag in force.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from tidegate_spark.substreams import values_of
from tidegate_spark.versions import from_arrow
from tidegate_spark.windows.frame import Frame

GAMMA = 101 / 99
"""Delays of one bucket are equal to within 1 %."""
HIGHEST_BUCKET = 1838

Order = Literal["batch", "row"]
"""What a row comes behind: where its substream was before the batch, or before the row."""

AIMS = "target_completeness"


def needed_by(config: Mapping[str, Any]) -> bool:
    """Whether a job's rules learn from delays."""
    policies = [config.get("policy"), *(override["policy"] for override in config.get("overrides") or ())]
    return any(policy is not None and policy["type"] == AIMS for policy in policies)


@dataclass(frozen=True, slots=True)
class Measuring:
    """``max_event_times``: of each substream, before the batch; of one that is not in here, no delays are known.
    ``frame``: the
    windows that rows are judged by; then the last moment of its first window stands for a row.
    """

    order: Order
    max_event_times: Mapping[str, int]
    frame: Frame | None

    def put_beside(self, judged: DataFrame, keys: list[str]) -> DataFrame:
        """Rows with the columns ``time`` and ``latest``, and a column ``bucket``: null where a row has no delay."""
        time = self._judged_at(F.col("time"))
        if self.order == "row":
            known = {
                values_of(name, len(keys)): max_event_time for name, max_event_time in self.max_event_times.items()
            }
            within = (F.col("time") <= F.col("latest")) & (F.col("time") >= F.lit(-(2**53)))
            source = judged.withColumn("judged_at", F.when(within, time))
            schema = StructType([*source.schema.fields, StructField("bucket", LongType())])
            return source.mapInArrow(_in_order(keys, known), schema)
        joined = self._with_tops(judged, keys)
        behind = F.col("top_before") - time
        bucket = F.least(F.ceil(F.log(behind.cast("double")) / F.lit(math.log(GAMMA))) + 1, F.lit(HIGHEST_BUCKET))
        return joined.withColumn(
            "bucket",
            F.when(F.col("time") <= F.col("latest"), F.when(behind > 0, bucket).when(behind <= 0, F.lit(0))).cast(
                "long"
            ),
        )

    def _judged_at(self, time: Column) -> Column:
        if self.frame is None:
            return time
        slide, offset = F.lit(self.frame.slide), F.lit(self.frame.offset)
        return time - F.pmod(time - offset, slide) + slide - F.lit(1)

    def _with_tops(self, judged: DataFrame, keys: list[str]) -> DataFrame:
        names = [f"of_{key}" for key in keys]
        max_event_times = F.broadcast(self._table(judged.sparkSession, names))
        if not keys:
            return judged.crossJoin(max_event_times)
        same = [F.col(key).eqNullSafe(F.col(name)) for key, name in zip(keys, names, strict=True)]
        condition = same[0]
        for other in same[1:]:
            condition = condition & other
        return judged.join(max_event_times, condition, "left")

    def _table(self, spark: SparkSession, names: list[str]) -> DataFrame:
        """The tops, as a relation, whose values are data: its plan is the same for every batch."""
        rows = [values_of(name, len(names)) for name in self.max_event_times]
        columns = {name: pa.array([row[at] for row in rows], pa.string()) for at, name in enumerate(names)}
        max_event_times: list[int | None] = list(self.max_event_times.values())
        if not names:  # one row in any case, for there is nothing to join by
            max_event_times = [max(self.max_event_times.values(), default=None)]
        return from_arrow(spark, pa.table({**columns, "top_before": pa.array(max_event_times, pa.int64())}))


def _in_order(
    keys: list[str], max_event_times: Mapping[tuple[str | None, ...], int]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function for ``mapInArrow``: each row of a task against the top that its substream had before it."""

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
                if not len(rows):
                    continue
                key = values[group[rows[0]]]
                before = np.empty(len(rows), "int64")
                before[1:] = np.maximum.accumulate(seen[rows])[:-1]
                max_event_time = reached.get(key)
                if max_event_time is None:
                    before[0] = np.iinfo("int64").min
                    measured = slice(1, None)
                else:
                    before[0] = max_event_time
                    before = np.maximum(before, max_event_time)
                    measured = slice(0, None)
                behind = (before - times[rows])[measured]
                positive = np.maximum(behind, 1).astype("float64")
                found = np.minimum(np.ceil(np.log(positive) / math.log(GAMMA)) + 1, HIGHEST_BUCKET).astype("int64")
                bucket[rows[measured]] = np.where(behind > 0, found, 0)
                highest = int(seen[rows].max())
                reached[key] = highest if max_event_time is None else max(max_event_time, highest)
            columns = [*batch.columns, pa.array(bucket, mask=bucket < 0)]
            yield pa.RecordBatch.from_arrays(columns, names=[*batch.schema.names, "bucket"])

    return measure


def _groups(batch: pa.RecordBatch, keys: list[str]) -> tuple[Any, list[tuple[str | None, ...]]]:
    """The group of each row, as a number, and the keys of each group."""
    import numpy as np

    group = np.zeros(batch.num_rows, "int64")
    values: list[tuple[str | None, ...]] = [()]
    for key in keys:
        encoded = batch.column(key).dictionary_encode(null_encoding="encode")
        words = encoded.dictionary.to_pylist()
        combined = group * len(words) + encoded.indices.to_numpy(zero_copy_only=False)
        distinct, group = np.unique(combined, return_inverse=True)
        values = [(*values[at // len(words)], words[at % len(words)]) for at in distinct]
    return group, values
