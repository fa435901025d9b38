"""The result of a run: a printed table, ``summary.json`` and ``batches.csv``."""

import csv
import json
from collections import Counter, defaultdict
from datetime import datetime
from typing import Any

import pyarrow.parquet as pq

from examples.flights.coordinated import Departures
from examples.flights.files import utc
from examples.flights.settings import Settings
from tidegate_spark import Job


def write_batches(departures: Departures, settings: Settings) -> list[dict[str, Any]]:
    """Write ``batches.csv`` with one line per batch, and return the batches in ascending order of their ids."""
    batches = [{"batch_id": n, **departures.batches.read_json(n)} for n in departures.batches.ids()]
    columns = ["batch_id", "pin_ms", "watermark_ms", "rows", "late"]
    with open(settings.out / "batches.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(batches)
    return batches


def summarize(
    batches: list[dict[str, Any]],
    settings: Settings,
    *,
    final_watermark_ms: int,
    left_out: int,
    native_counted: int,
    late_under_global_maximum: int,
    seconds: float,
) -> dict[str, Any]:
    """Add up the batches, write ``summary.json``, and return its content."""
    totals = {name: sum(batch[name] for batch in batches) for name in ("rows", "on_time", "late", "null_event_time")}
    summary = {
        **totals,
        "left_out": left_out,
        "windows": pq.ParquetDataset(settings.out / "windows").read().num_rows,
        "final_watermark_ms": final_watermark_ms,
        "native_lost": totals["rows"] - native_counted,
        "late_under_global_maximum": late_under_global_maximum,
        "batches": len(batches),
        "seconds": round(seconds, 1),
    }
    (settings.out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    return summary


def longest_holders(batches: list[dict[str, Any]], most: int = 3) -> list[tuple[str, float]]:
    """Return the destinations that held the watermark longest, with the total duration of these batches in seconds.

    Args:
        batches: The batches of the run.
        most: Highest number of destinations to return.
    """
    held: defaultdict[str, float] = defaultdict(float)
    for batch in batches:
        if batch["held_by"] is not None:
            held[batch["held_by"]] += batch["seconds"]
    return sorted(held.items(), key=lambda item: -item[1])[:most]


def table(summary: dict[str, Any], batches: list[dict[str, Any]], settings: Settings) -> str:
    """Return the table that the demo prints at its end."""

    def share(count: int) -> str:
        return f"{count:>9,}  {100 * count / summary['rows']:6.2f} %"

    holders = ", ".join(f"{name} ({seconds:.0f} s)" for name, seconds in longest_holders(batches)) or "none"
    left_out = f"{summary['left_out']:,} left out: no take-off or air time"
    lines = [
        f"Flights landed {settings.start:%Y-%m-%d} to {settings.end:%Y-%m-%d}, lag {settings.lag_minutes} minutes, "
        "hourly windows by take-off",
        f"  rows                         {summary['rows']:>9,}  ({left_out})",
        f"  counted on time              {share(summary['on_time'])}",
        f"  late                         {share(summary['late'])}",
        f"  without an event time        {share(summary['null_event_time'])}",
        f"  lost by Spark's own watermark{share(summary['native_lost'])}",
        f"  late under one maximum, by row{share(summary['late_under_global_maximum'])[1:]}",
        f"  windows closed               {summary['windows']:>9,}",
        f"  final watermark              {utc(summary['final_watermark_ms']):%Y-%m-%d %H:%M} (New York wall clock)",
        f"  held longest by              {holders}",
        f"  {summary['batches']} batches in {summary['seconds']:.0f} s; the output is in {settings.out}",
    ]
    return "\n".join(lines)


def frames_of(job: Job) -> list[Any]:
    """Return all frames of the job, first one first."""
    found: list[Any] = []
    following: datetime | None = None
    while True:
        page = job.frames(to=following, limit=1000)
        found += page["frames"]
        if page["next"] is None:
            return found[::-1]
        following = utc(page["next"])


def frames_table(frames: list[Any], most: int = 2) -> str:
    """Return the table of the first frames and the corrected ones, and the number of the others by state.

    Args:
        frames: The frames, first one first.
        most: Maximum number of lines for the first frames, and for the corrected ones.
    """
    corrected = [frame for frame in frames if len(frame["generations"]) > 1]
    shown = sorted({frame["start"]: frame for frame in frames[:most] + corrected[:most]}.items())
    lines = [f"{'hour':<18}{'state':<26}{'generation':>10}{'on time':>9}{'late':>6}"]
    for start, frame in shown:
        rows, state = frame["rows"], frame["state"].replace("_", " ")
        late = rows["dropped"] + rows["diverted"]
        lines.append(
            f"{utc(start):%Y-%m-%d %H:%M}  {state:<26}{frame['generation'] or '-':>10}{rows['on_time']:>9,}{late:>6,}"
        )
    others = Counter(frame["state"].replace("_", " ") for frame in frames)
    counts = ", ".join(f"{count:,} {state}" for state, count in others.most_common())
    return "\n".join([*lines, f"all {len(frames):,} hours: {counts}; {len(corrected):,} corrected"])
