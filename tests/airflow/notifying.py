"""What a notifier does: it starts a run for a generation of a frame."""

from datetime import UTC, datetime
from typing import Any

import httpx

from tests.airflow.running import Airflow


def notify(airflow: Airflow, job: str, frame: dict[str, Any], *, dag: str = "", asset: str = "") -> httpx.Response:
    """Start a run for the latest generation of a frame, by the requests of ``tidegate notify airflow``."""
    start, end = (_text(frame[name]) for name in ("start", "end"))
    generation = frame["generations"][-1]
    key = f"{job}__{start}__g{generation['generation']}"
    body = {
        "dag_run_id": key,
        "logical_date": None,
        "partition_key": start.replace("Z", "+0000"),
        "conf": {
            "job": job,
            "key": key,
            "frame_start": start,
            "frame_end": end,
            "frame_start_ms": frame["start"],
            "frame_end_ms": frame["end"],
            **{name: frame[name] for name in ("state", "watermark", "exclusions")},
            **{name: generation[name] for name in ("generation", "reason", "rows", "outputs")},
        },
    }
    if dag:
        return airflow.call("POST", f"dags/{dag}/dagRuns", json=body)
    [number] = [found["id"] for found in airflow.get("assets", name_pattern=asset)["assets"] if found["name"] == asset]
    return airflow.call("POST", f"assets/{number}/materialize", json=body)


def _text(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"
