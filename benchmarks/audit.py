"""The cost of an audit: its aggregate over a hundred files of Parquet, beside a plain aggregate of the same columns."""

import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from benchmarks.overhead import session
from benchmarks.paired import interleave
from benchmarks.results import Row, Spread, ratios
from tidegate_spark.auditing.checkpoint import LoggedFile
from tidegate_spark.auditing.rows import SourceRows, Window, count
from tidegate_spark.auditing.sources import read_files

PLAIN, AGAIN = "plain aggregate", "plain aggregate again"
AUDIT, AUDIT_OF_ALL = "audit, a tenth of the batches in the log", "audit, all batches in the log"
FILES, ROWS = 100, 1_000_000
"""Number of files, and of rows in a file. Each file is a batch."""
START_S, HOUR_MS = 1_357_000_000, 3_600_000


def _write(spark: SparkSession, out: Path) -> list[LoggedFile]:
    """Write the files: in each, the event times of an hour, and of 64 substreams up to an hour behind."""
    shutil.rmtree(out, ignore_errors=True)
    number = F.col("id")
    substream = (number % 64).alias("k")
    seconds = START_S + (number / ROWS * 3600).cast("long") - (number % 64) * 60
    rows = spark.range(0, FILES * ROWS, 1, FILES)
    rows.select(F.timestamp_seconds(seconds).alias("t"), substream).write.parquet(str(out))
    names = sorted(out.glob("part-*.parquet"))
    assert len(names) == FILES
    return [LoggedFile(f"file://{name}", place, 0) for place, name in enumerate(names)]


def _plain(spark: SparkSession, out: Path) -> float:
    began = time.perf_counter()
    rows = spark.read.parquet(str(out))
    hours = rows.groupBy("k", F.window("t", "1 hour")["end"]).agg(F.count("*"), F.max("t"))
    assert len(hours.collect()) > FILES
    return time.perf_counter() - began


def _audit(spark: SparkSession, files: list[LoggedFile], first_logged: int) -> float:
    began = time.perf_counter()
    found = read_files(spark, None, {file: file.offset for file in files}, {}, first_logged)
    late = {place: 1000 * (START_S + 3600 * (place - 2)) for place in range(first_logged, FILES)}
    sources = [SourceRows(0, part.rows, "t", "k", part.batches, part.is_logged) for part in found.parts]
    groups = count(sources, late, Window(HOUR_MS, HOUR_MS))
    assert sum(group.rows for group in groups) == FILES * ROWS
    return time.perf_counter() - began


def run(out: Path, rounds: int, show: Callable[[str], None]) -> list[Row]:
    """Compare both over a hundred million rows."""
    with session({}) as spark:
        folder = (out / "audit").absolute()
        show(f"writing {FILES * ROWS:,} rows")
        files = _write(spark, folder)
        plain = partial(_plain, spark, folder)
        audits = {
            AUDIT: partial(_audit, spark, files, FILES - FILES // 10),
            AUDIT_OF_ALL: partial(_audit, spark, files, 0),
        }
        seconds = interleave({PLAIN: plain, AGAIN: plain, **audits}, rounds, show)
    return [
        Row(PLAIN, Spread.of(seconds[PLAIN]), "s"),
        Row(f"{AGAIN} / {PLAIN} (control)", ratios(seconds[AGAIN], seconds[PLAIN])),
        *(Row(f"{audit} / {PLAIN}", ratios(seconds[audit], seconds[PLAIN]), at_most=2) for audit in audits),
    ]
