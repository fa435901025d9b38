"""Checks of the demo's output, compared with pandas."""

import csv
import json
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq

from examples.flights import data
from examples.flights.settings import Settings

EXACT = {"DEMO_DAYS": "1", "DEMO_LAG_MINUTES": "120", "DEMO_IDLE_BATCHES": "0"}
"""All destinations are declared, none becomes idle, and the lag is above the largest delay: no row is late."""


def settings(out: Path, days: int) -> Settings:
    return Settings(datetime(2013, 1, 1, tzinfo=UTC), days, 1, 120, 0, out)


def replayed(out: Path, days: int) -> pd.DataFrame:
    """Return the flights that the demo replays, in the order in which their landings are recorded."""
    of_run = settings(out, days)
    return data.delay_first(data.load(of_run), of_run).flights


def read_summary(out: Path) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
    return summary


def check_accounts(out: Path, flights: pd.DataFrame) -> dict[str, Any]:
    """Check that no row is lost or counted twice, and that files and summary agree; return the summary."""
    summary = read_summary(out)
    assert summary["rows"] == len(flights) == summary["on_time"] + summary["late"] + summary["null_event_time"]
    windows = pq.ParquetDataset(out / "windows").read().to_pandas()
    assert len(windows) == summary["windows"]
    assert not windows.duplicated(["origin", "window_start"]).any(), "a window was written twice"
    assert windows["departures"].sum() == summary["on_time"]
    assert (windows["window_end"] - windows["window_start"] == pd.Timedelta(hours=1)).all()
    assert (windows["window_end"] <= windows["watermark"]).all(), "a window closed above the watermark"
    late = pq.ParquetDataset(out / "late").read().to_pandas()
    assert len(late) == summary["late"]
    assert (late["departed_at"] < late["watermark"]).all()
    with open(out / "batches.csv", newline="") as file:
        batches = list(csv.DictReader(file))
    assert [int(batch["batch_id"]) for batch in batches] == list(range(summary["batches"]))
    assert sum(int(batch["rows"]) for batch in batches) == summary["rows"]
    pinned_watermarks = [int(batch["pin_ms"]) for batch in batches if batch["pin_ms"]]
    assert pinned_watermarks == sorted(pinned_watermarks)
    assert summary["final_watermark_ms"] > flights["departed_at"].max().timestamp() * 1000
    return summary


def check_windows(out: Path, flights: pd.DataFrame) -> None:
    """Check that the windows and the late row together equal the hours of pandas.

    This requires that every destination is declared, idleness is off, and the lag exceeds the worst disorder. Only the
    flight whose landing is recorded last may be late.
    """
    windows = pq.ParquetDataset(out / "windows").read().to_pylist()
    counted = Counter({(row["origin"], row["window_start"]): row["departures"] for row in windows})
    late = pq.ParquetDataset(out / "late").read().to_pandas()
    counted.update(
        zip(late["origin"], (hour.to_pydatetime() for hour in late["departed_at"].dt.floor("h")), strict=True)
    )
    assert list(late["departed_at"]) in ([], [flights["departed_at"].iloc[-1]])
    hours = [hour.to_pydatetime() for hour in flights["departed_at"].dt.floor("h")]
    assert counted == Counter(zip(flights["origin"], hours, strict=True))
