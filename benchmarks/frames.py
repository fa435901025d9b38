"""The cost of frames: for small batches of Spark, for a batch of ten million rows, and for a backfill of ten years.

Each measurement is made with hourly frames and without, in the same round.
"""

import statistics
import time
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path

import httpx

from benchmarks import overhead, small_batches
from benchmarks.overhead import CONFIG, Overhead, session
from benchmarks.paired import interleave
from benchmarks.results import Row, Spread, ratios
from tidegate.domain.calendar import HOUR_MS
from tidegate_spark import JobConfig, Stream
from tidegate_spark.testing import CoordinatorProcess

WITHOUT, AGAIN, WITH = "without frames", "without frames again", "with hourly frames"
MONTHS, HOURS_OF_MONTH = 120, 730
START = 350_000 * HOUR_MS
_RUN = {"query_id": "checkpoint", "run_id": "run"}


def backfill(process: CoordinatorProcess, has_frames: bool) -> float:
    """Return the seconds of a backfill: a batch for each month, with a row in each hour of ten years."""
    job, names = f"backfill-{uuid.uuid4()}", ["topic/0"]
    config = {"policy": {"type": "limiting_lag", "lag_ms": 0}, "max_future_skew_ms": None}
    if has_frames:
        config["frames"] = {"every": "hour", "offset_ms": 0, "time_zone": None, "correction_delay_ms": 60_000}
    with httpx.Client(base_url=process.url, timeout=120) as http:

        def call(method: str, path: str, body: object, headers: dict[str, str] | None = None) -> None:
            http.request(method, f"/v1/jobs/{job}{path}", json=body, headers=headers).raise_for_status()

        call("PUT", "", config, {"If-None-Match": "*"})
        began = time.perf_counter()
        for month in range(MONTHS):
            hours = range(month * HOURS_OF_MONTH, (month + 1) * HOURS_OF_MONTH)
            path, latest = f"/queries/q/batches/{month}", START + hours[-1] * HOUR_MS
            call("PUT", path, _RUN)
            report = {"substreams": names, "max_event_times": [latest], "counts": [HOURS_OF_MONTH]}
            call("POST", ":report", report | {"batch": _RUN | {"query": "q", "batch_id": month, "partition": 0}})
            by_hour = [[START // HOUR_MS + hour, 1, 0, 0] for hour in hours]
            rows = {"on_time": [HOURS_OF_MONTH], "late": [0], "null_event_time": [0], "hours": [by_hour]}
            if has_frames:
                rows["frames"] = [[hour * HOUR_MS, 1, 0, 0] for hour, *_ in by_hour]
            call("POST", f"{path}:commit", _RUN | {"rows": {"substreams": names} | rows})
        seconds = time.perf_counter() - began
        if has_frames:
            page = http.get(f"/v1/jobs/{job}/frames", params={"limit": 1}).raise_for_status().json()
            assert page["finished"]["complete"] == MONTHS * HOURS_OF_MONTH - 1, page["finished"]
    return seconds


def _unchanged(stream: Stream) -> Stream:
    return stream


def run(out: Path, rounds: int, show: Callable[[str], None]) -> list[Row]:
    """Measure each kind of batch with frames and without."""
    kinds = {WITHOUT: False, AGAIN: False, WITH: True}
    with CoordinatorProcess(out / f"coordinator-{uuid.uuid4()}", max_body_bytes=str(64 * 1024 * 1024)) as coordinator:
        years = interleave({name: partial(backfill, coordinator, has) for name, has in kinds.items()}, rounds, show)
        with session() as spark:
            small = small_batches.Bench(spark, coordinator, out / f"small-{uuid.uuid4()}")
            large = Overhead(spark, coordinator, out, 64)
            hourly: dict[bool, JobConfig] = {True: {**CONFIG, "frames": {"every": "hour"}}, False: CONFIG}
            of_small = interleave(
                {name: partial(small.coordinated, _unchanged, hourly[has]) for name, has in kinds.items()}, rounds, show
            )
            of_large = interleave(
                {name: large.coordinated(config=hourly[has]) for name, has in kinds.items()}, rounds, show
            )
    medians = {name: [statistics.median(each) for each in found] for name, found in of_small.items()}
    rows: list[Row] = []
    for what, seconds, at_most in (
        ("backfill of ten years", years, 2.0),
        (f"batch of {small_batches.ROWS} rows", medians, 1.05),
        (f"batch of {overhead.ROWS:,} rows", of_large, 1.05),
    ):
        rows.append(Row(f"{what} {WITHOUT}", Spread.of(seconds[WITHOUT]), "s"))
        rows.append(Row(f"{what}: {AGAIN} (control)", ratios(seconds[AGAIN], seconds[WITHOUT])))
        rows.append(Row(f"{what}: {WITH}", ratios(seconds[WITH], seconds[WITHOUT]), at_most=at_most))
    return rows
