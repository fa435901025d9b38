"""What a notifier does: it starts a run for a generation of a frame."""

from typing import Any

import httpx

from tests.airflow.running import Airflow
from tidegate.cli.airflow import conf_of, partition_key
from tidegate.cli.following import Delivery


def notify(airflow: Airflow, job: str, frame: dict[str, Any], *, dag: str = "", asset: str = "") -> httpx.Response:
    """Start a run for the latest generation of a frame, by the requests of ``tidegate notify airflow``."""
    delivery = Delivery(job, frame, frame["generations"][-1])
    body = {
        "dag_run_id": delivery.key,
        "logical_date": None,
        "partition_key": partition_key(frame["start"]),
        "conf": conf_of(delivery),
    }
    if dag:
        return airflow.call("POST", f"dags/{dag}/dagRuns", json=body)
    [number] = [found["id"] for found in airflow.get("assets", name_pattern=asset)["assets"] if found["name"] == asset]
    return airflow.call("POST", f"assets/{number}/materialize", json=body)
