"""The cost of coordination for batches of ten million rows of Delta Lake and Iceberg, measured as for Parquet."""

import uuid
from collections.abc import Callable
from pathlib import Path

from benchmarks.overhead import Overhead, session
from benchmarks.results import Row
from tidegate_spark.testing import CoordinatorProcess

SUBSTREAMS = (1, 64, 256)
JARS = Path(__file__).parents[1] / ".venv" / "tables" / "spark-4.1"
SETTINGS = {
    "spark.jars": ",".join(map(str, sorted(JARS.glob("*.jar")))),
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.lake.type": "hadoop",
}


def run(out: Path, rounds: int, show: Callable[[str], None]) -> list[Row]:
    """Measure each source with each number of substreams."""
    rows = []
    settings = {**SETTINGS, "spark.sql.catalog.lake.warehouse": str(out)}
    with CoordinatorProcess(out / f"coordinator-{uuid.uuid4()}") as coordinator, session(settings) as spark:
        for source in ("delta", "iceberg"):
            for substreams in SUBSTREAMS:
                rows += Overhead(spark, coordinator, out, substreams, source).compare(rounds, show)
    return rows
