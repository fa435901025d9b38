"""The cost of a guarded append: ``write_once`` in place of a plain append of the same rows, to Delta Lake and Iceberg.

Each table has the versions of many batches before the first round. Delta Lake computes the state of the table for each
append with a transaction of an application, also for those of its own streaming sink: they are compared, too.
"""

import itertools
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from benchmarks.overhead import session
from benchmarks.paired import interleave
from benchmarks.results import Row, Spread, ratios
from benchmarks.tables import SETTINGS
from tidegate_spark.claims import AppendRecord
from tidegate_spark.tables import Table, table_on

PLAIN, AGAIN, ONCE = "plain append", "plain append again", "write_once"
IDEMPOTENT = "append with txnAppId"
ROWS = (1, 1_000_000)
VERSIONS = 100
"""Number of batches in a table before the first round."""
FAST_DELTA = {"spark.databricks.delta.snapshotPartitions": "2"}
"""Delta Lake reads its log in 50 partitions by default, which takes seconds on two cores and hides other costs."""


def _table(spark: SparkSession, form: str, out: Path) -> Table:
    """Return a new table with the versions of many batches."""
    unique = uuid.uuid4().hex
    name, empty = str(out / f"appends-{unique}"), spark.range(0)
    if form == "delta":
        empty.write.format("delta").save(name)
    else:
        name = f"lake.appends.t{unique}"
        empty.writeTo(name).using("iceberg").create()
    table = table_on(spark, name)
    batches = itertools.count()
    for _ in range(VERSIONS):
        _once(table, empty, batches)
    return table


def _plain(table: Table, form: str, df: DataFrame, batches: Iterator[int] | None = None) -> float:
    """Append rows; to a Delta table with the next version of a transaction, if there are ``batches``."""
    began = time.perf_counter()
    if form == "delta":
        options: dict[str, str | int] = {} if batches is None else {"txnAppId": "appends", "txnVersion": next(batches)}
        df.write.format("delta").mode("append").options(**options).save(table.name)
    else:
        df.writeTo(table.name).append()
    return time.perf_counter() - began


def _once(table: Table, df: DataFrame, batches: Iterator[int]) -> float:
    batch_id = next(batches)
    record = AppendRecord("checkpoint/on", batch_id, None, "appends", "q", 1000 * batch_id, 1000 * batch_id, 1)
    began = time.perf_counter()
    appended, _ = table.append_once(df, record, replayed=False)
    seconds = time.perf_counter() - began
    assert appended
    return seconds


def run(out: Path, rounds: int, show: Callable[[str], None]) -> list[Row]:
    """Measure appends of one row, and of a million rows."""
    rows = []
    settings = {**SETTINGS, **FAST_DELTA, "spark.sql.catalog.lake.warehouse": str(out / "warehouse")}
    with session(settings) as spark:
        for form in ("delta", "iceberg"):
            show(f"{form}: writing {VERSIONS} versions of three tables")
            plain, guarded, by_delta = (_table(spark, form, out) for _ in range(3))
            batches, versions = itertools.count(VERSIONS), itertools.count()
            for count in ROWS:
                name, df = f"{form}, {count:,} row{'s' if count > 1 else ''}", spark.range(count)
                show(f"{name}:")
                ways = {
                    PLAIN: partial(_plain, plain, form, df),
                    AGAIN: partial(_plain, plain, form, df),
                    ONCE: partial(_once, guarded, df, batches),
                }
                if form == "delta":
                    ways[IDEMPOTENT] = partial(_plain, by_delta, form, df, versions)
                seconds = interleave(ways, rounds, show)
                rows += [
                    Row(f"{name}: {PLAIN}", Spread.of(seconds[PLAIN]), "s"),
                    Row(f"{name}: {AGAIN} / {PLAIN} (control)", ratios(seconds[AGAIN], seconds[PLAIN])),
                    *(
                        Row(f"{name}: {ONCE} / {other}", ratios(seconds[ONCE], seconds[other]), at_most=1.1)
                        for other in (PLAIN, IDEMPOTENT)
                        if other in seconds
                    ),
                ]
    return rows
