"""A streaming source that a test writes batch by batch."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession


class FileBatches:
    """A directory that Spark reads as a stream, one file per batch, in the order in which the files were added.

    Batches may be added before the query starts or while it runs. Every query on the directory has the same batches,
    also after a restart.

    Args:
        directory: Directory of the files; created if it does not exist.
        schema: Schema of the rows, as a DDL string such as ``"dest string, departed_at timestamp"``.
    """

    def __init__(self, directory: Path, schema: str) -> None:
        self.directory, self.schema = directory, schema
        directory.mkdir(parents=True, exist_ok=True)

    def add(self, *rows: Mapping[str, Any]) -> None:
        """Add a batch. Rows have JSON values; write a timestamp as ``"2013-01-01T12:00:00Z"``."""
        number = 1 + sum(1 for _ in self.directory.glob("*.json"))
        partial = self.directory / ".partial"
        partial.write_text("".join(json.dumps(row) + "\n" for row in rows))
        # Spark reads the oldest file first and compares whole seconds.
        os.utime(partial, (1_000_000_000 + number,) * 2)
        partial.rename(self.directory / f"{number:05d}.json")

    def stream(self, spark: SparkSession) -> DataFrame:
        """Return the directory as a streaming DataFrame, with one file per batch."""
        return spark.readStream.schema(self.schema).option("maxFilesPerTrigger", 1).json(str(self.directory))
