"""The cost of a guarded append: ``write_once`` in place of a plain append of the same rows, to Delta Lake and Iceberg.

Each table keeps its history over all rounds, and before the first round gets the versions of many batches.
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
ROWS = (1, 1_000_000)
VERSIONS = 100
"""Number of batches in a table before the first round."""


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


def _plain(table: Table, form: str, df: DataFrame) -> float:
    began = time.perf_counter()
    if form == "delta":
        df.write.format("delta").mode("append").save(table.name)
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
    settings = {**SETTINGS, "spark.sql.catalog.lake.warehouse": str(out / "warehouse")}
    with session(settings) as spark:
        for form, count in itertools.product(("delta", "iceberg"), ROWS):
            name, df = f"{form}, {count:,} row{'s' if count > 1 else ''}", spark.range(count)
            show(f"{name}:")
            plain, guarded = (_table(spark, form, out) for _ in range(2))
            seconds = interleave(
                {
                    PLAIN: partial(_plain, plain, form, df),
                    AGAIN: partial(_plain, plain, form, df),
                    ONCE: partial(_once, guarded, df, itertools.count(VERSIONS)),
                },
                rounds,
                show,
            )
            rows += [
                Row(f"{name}: {PLAIN}", Spread.of(seconds[PLAIN]), "s"),
                Row(f"{name}: {AGAIN} / {PLAIN} (control)", ratios(seconds[AGAIN], seconds[PLAIN])),
                Row(f"{name}: {ONCE} / {PLAIN}", ratios(seconds[ONCE], seconds[PLAIN]), at_most=1.1),
            ]
    return rows
