"""A Spark session with Delta Lake and Apache Iceberg."""

import os
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from tests.support.sessions import local_session

TABLES = Path(__file__).parents[2] / ".venv" / "tables"
JARS = TABLES / f"spark-{'.'.join(pyspark.__version__.split('.')[:2])}"
DELTA = "io.delta.sql.DeltaSparkSessionExtension"
ICEBERG = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    if not (TABLES / ".ready").exists():
        assert not os.environ.get("CI"), "CI needs Maven, which copies the jars of the tables"
        pytest.skip("needs the jars of Delta Lake and Iceberg: install Maven, and run make test-tables")
    with local_session(
        jars=",".join(map(str, sorted(JARS.glob("*.jar")))),
        sql__extensions=f"{DELTA},{ICEBERG}",
        sql__catalog__spark_catalog="org.apache.spark.sql.delta.catalog.DeltaCatalog",
        sql__catalog__ice="org.apache.iceberg.spark.SparkCatalog",
        sql__catalog__ice__type="hadoop",
        sql__catalog__ice__warehouse=str(tmp_path_factory.mktemp("warehouse")),
        databricks__delta__snapshotPartitions="2",
        sql__adaptive__enabled="false",  # it would write fewer files than partitions
    ) as session:
        yield session
