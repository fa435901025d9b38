"""Times, and the runs of Dags: one for each generation of a frame."""

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

FINISHED = ("complete", "complete_with_exclusions")
"""States of the frames for which a Dag runs: a frame without rows needs no run."""


def milliseconds(name: str, at: datetime | int | str) -> int:
    """Return a time as Unix milliseconds.

    Args:
        name: Name of the argument, for the error.
        at: A datetime with a time zone, a text in ISO 8601 with an offset, or Unix milliseconds.

    Raises:
        ValueError: If the time has another form.
    """
    if isinstance(at, str):
        if re.fullmatch(r"-?\d+", at):
            return int(at)
        try:
            at = datetime.fromisoformat(at)
        except ValueError as error:
            raise ValueError(
                f"{name} is {at!r}: expected a time with an offset, such as '2026-03-29T01:00:00+00:00', or Unix "
                "milliseconds. A run that a frame or an asset has started has no logical_date, ds or "
                "data_interval_end: use '{{ dag_run.conf.frame_start }}' or '{{ partition_key }}'."
            ) from error
    if isinstance(at, datetime):
        if at.tzinfo is None:
            raise ValueError(f"{name} is {at.isoformat()!r}, without a time zone: add an offset, such as '+00:00'.")
        return round(at.timestamp() * 1000)
    return at


def text(at_ms: int) -> str:
    """Return a time in UTC as text, such as ``2026-03-29T01:00:00Z``."""
    at = datetime.fromtimestamp(at_ms // 1000, UTC)
    fraction = f".{at_ms % 1000:03}" if at_ms % 1000 else ""
    return f"{at:%Y-%m-%dT%H:%M:%S}{fraction}Z"


def runs_of(job: str, frame: Mapping[str, Any], number: int | None = None) -> list[dict[str, Any]]:
    """Return the runs for the generations of a frame, as arguments of Airflow's ``TriggerDagRunOperator``.

    Args:
        job: The job.
        frame: The frame.
        number: The only generation; None: all generations that the frame lists.
    """
    return [_run(job, frame, each) for each in frame["generations"] if number in (None, each["generation"])]


def _run(job: str, frame: Mapping[str, Any], generation: Mapping[str, Any]) -> dict[str, Any]:
    start = text(frame["start"])
    key = f"{job}__{start}__g{generation['generation']}"
    conf = {
        "job": job,
        "key": key,
        "frame_start": start,
        "frame_end": text(frame["end"]),
        "frame_start_ms": frame["start"],
        "frame_end_ms": frame["end"],
        "state": frame["state"],
        "generation": generation["generation"],
        "reason": generation["reason"],
        "rows": generation["rows"],
        "watermark": frame["watermark"],
        "exclusions": frame["exclusions"],
        "outputs": generation["outputs"],
    }
    # Airflow renders conf as a template, and a substream may have any name. In JSON, only texts contain these pairs.
    return {"trigger_run_id": key, "conf": re.sub(r"\{(?=[{%#])", r"\\u007b", json.dumps(conf))}
