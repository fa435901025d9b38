"""Departures per origin and hour: counted as they come, written once, when the watermark closes the hour.

The counts of the hours that are still open are kept in one version per batch. Version N derives from the latest version
below N and from batch N alone, so a batch that is replayed comes to the same version and the same files.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from examples.flights.files import BatchFiles

HOUR_MS = 3_600_000
SCHEMA = pa.schema(
    [
        ("origin", pa.string()),
        ("window_start", pa.timestamp("ms", "UTC")),
        ("window_end", pa.timestamp("ms", "UTC")),
        ("departures", pa.int64()),
        ("batch_id", pa.int64()),
        ("watermark", pa.timestamp("ms", "UTC")),
    ]
)
Counts = dict[tuple[str, int], int]
"""Departures by origin and start of the hour, in epoch milliseconds."""


def hours(df: DataFrame) -> Counts:
    """The departures in a batch."""
    hour = (F.unix_millis("departed_at") / HOUR_MS).cast("long") * HOUR_MS
    rows = df.groupBy("origin", hour.alias("hour")).count().collect()
    return {(row["origin"], row["hour"]): row["count"] for row in rows}


@dataclass
class HourlyDepartures:
    """Open hours under ``state``, closed ones as Parquet under ``closed``."""

    closed: BatchFiles
    state: BatchFiles

    @classmethod
    def under(cls, out: Path) -> "HourlyDepartures":
        departures = cls(BatchFiles(out / "windows", ".parquet"), BatchFiles(out / "state" / "open-windows", ".json"))
        departures.closed.write_empty(SCHEMA)
        return departures

    def add(self, batch_id: int, counts: Counts, watermark: int | None) -> None:
        """Adds a batch's departures, and closes the hours that ended at or before the watermark it was judged by."""
        open_hours = self._before(batch_id)
        for key, count in counts.items():
            open_hours[key] = open_hours.get(key, 0) + count
        done = {key for key in open_hours if watermark is not None and key[1] + HOUR_MS <= watermark}
        if done:
            rows = [(*key, open_hours.pop(key)) for key in sorted(done)]
            self.closed.write_table(batch_id, _table(rows, batch_id, watermark))
        self.state.write_json(batch_id, [[*key, count] for key, count in sorted(open_hours.items())])

    def _before(self, batch_id: int) -> Counts:
        earlier = [version for version in self.state.ids() if version < batch_id]
        return {(origin, hour): n for origin, hour, n in self.state.read_json(earlier[-1])} if earlier else {}


def _table(rows: list[tuple[str, int, int]], batch_id: int, watermark: int | None) -> pa.Table:
    return pa.table(
        {
            "origin": [origin for origin, _, _ in rows],
            "window_start": [utc(hour) for _, hour, _ in rows],
            "window_end": [utc(hour + HOUR_MS) for _, hour, _ in rows],
            "departures": [count for _, _, count in rows],
            "batch_id": [batch_id] * len(rows),
            "watermark": [None if watermark is None else utc(watermark)] * len(rows),
        },
        schema=SCHEMA,
    )


def utc(epoch_ms: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=epoch_ms)
