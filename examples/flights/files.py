"""Output files, one for each batch. A write is atomic, and a replayed batch overwrites its file."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq


class BatchFiles:
    """A directory with at most one ``batch-<id>`` file for each batch."""

    def __init__(self, directory: Path, suffix: str) -> None:
        self.directory, self.suffix = directory, suffix
        directory.mkdir(parents=True, exist_ok=True)

    def path(self, batch_id: int) -> Path:
        return self.directory / f"batch-{batch_id:06d}{self.suffix}"

    def ids(self) -> list[int]:
        """Return the ids of the batches that have a file, in ascending order."""
        return sorted(int(path.stem.removeprefix("batch-")) for path in self.directory.glob(f"batch-*{self.suffix}"))

    def write_json(self, batch_id: int, value: Any) -> None:
        partial = self._partial(batch_id)
        partial.write_text(json.dumps(value))
        partial.rename(self.path(batch_id))

    def read_json(self, batch_id: int) -> Any:
        return json.loads(self.path(batch_id).read_text())

    def write_table(self, batch_id: int, table: pa.Table) -> None:
        partial = self._partial(batch_id)
        pq.write_table(table, partial)
        partial.rename(self.path(batch_id))

    def write_empty(self, schema: pa.Schema) -> None:
        """Write a file without rows, so that an otherwise empty directory can be read as a table."""
        pq.write_table(schema.empty_table(), self.directory / "empty.parquet")

    def _partial(self, batch_id: int) -> Path:
        return self.directory / f".batch-{batch_id:06d}{self.suffix}.partial"


def utc(epoch_ms: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=epoch_ms)
