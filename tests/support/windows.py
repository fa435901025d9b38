"""A query of the hook with windows by ``k``, and the results that its function received."""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from tidegate_spark import Committed, Job, Stream, windows
from tidegate_spark.testing import FileBatches

SECOND = 1000


@dataclass
class Results:
    """The results that a query's function received by batch, and the table that a consumer derives from them."""

    given: dict[int, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    late: dict[int, list[tuple[str | None, int | None]]] = field(default_factory=dict)
    committed: list[Committed] = field(default_factory=list)

    def write(self, df: DataFrame, batch_id: int) -> None:
        found = [row.asDict(recursive=True) for row in df.collect()]
        self.given[batch_id] = sorted(found, key=lambda row: (row["window"]["start"], str(row.get("k"))))

    def write_late(self, df: DataFrame, batch_id: int) -> None:
        self.late[batch_id] = sorted(((row.k, row.t) for row in df.collect()), key=str)

    def after(self, stream: Stream) -> Stream:
        return stream.foreach_batch(self.write).late_output(self.write_late).on_commit(self.committed.append)

    def table(self) -> dict[tuple[int, Any], dict[str, Any]]:
        """Return the last result of each window; check that each ``previous`` equals the result before."""
        table: dict[tuple[int, Any], dict[str, Any]] = {}
        for batch in sorted(self.given):
            for row in self.given[batch]:
                result = {name: value for name, value in row.items() if name not in ("window", "k", "previous")}
                key = (row["window"]["start"], row.get("k"))
                assert row["previous"] == table.get(key), f"batch {batch}, {key}"
                table[key] = result
        return table

    def count(self, row_class: str) -> int:
        return sum(getattr(committed, row_class) for committed in self.committed)


def tens(job: Job, source: FileBatches, spark: SparkSession, results: Results, **more: Any) -> Stream:
    """Return a stream with windows of ten seconds by ``k``."""
    stream = job.stream(source.stream(spark), event_time="t", substream="k").persist(False)
    windowed = stream.windows(10 * SECOND, **more).agg("k", rows=windows.count(), last=windows.max("t"))
    return results.after(windowed)
