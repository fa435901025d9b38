"""One Spark session for the run, and a stream of small files that a test writes as it goes."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tidegate_spark.testing import ensure_java


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    ensure_java()
    session = (
        SparkSession.builder.appName("tests")
        .master("local[2]")
        .config("spark.sql.session.timeZone", "America/New_York")  # nothing may depend on it
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.ui.enabled", False)
        .config("spark.ui.showConsoleProgress", False)
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


class Input:
    """A directory that Spark reads as a stream, one file a batch, in the order in which they were written."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.files = directory, 0
        directory.mkdir()

    def write(self, *rows: dict[str, Any]) -> None:
        partial = self.directory / ".partial"
        partial.write_text("".join(json.dumps(row) + "\n" for row in rows))
        self.files += 1
        os.utime(partial, (1_000_000_000 + self.files,) * 2)
        partial.rename(self.directory / f"{self.files:05d}.json")

    def stream(self, spark: SparkSession, schema: str) -> DataFrame:
        return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(str(self.directory))


@pytest.fixture
def source(tmp_path: Path) -> Input:
    return Input(tmp_path / "input")
