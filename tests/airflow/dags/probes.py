"""Dags with one sensor each, whose arguments come from the conf of the run."""

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG

from tidegate_airflow.sensors import TidegateFrameSensor, TidegateWatermarkSensor

OPTIONS: dict[str, Any] = {
    "job": "{{ dag_run.conf.job }}",
    "tidegate_conn_id": "{{ dag_run.conf.get('conn_id', 'tidegate_default') }}",
    "poke_interval": 0.5,
    "retries": 2,
    "retry_delay": timedelta(seconds=1),
}
FRAME = OPTIONS | {"task_id": "wait", "time": "{{ dag_run.conf.time }}"}
WATERMARK = OPTIONS | {"task_id": "wait", "at_least": "{{ dag_run.conf.time }}"}

with DAG("poke"):
    TidegateFrameSensor(**FRAME)
with DAG("defer"):
    TidegateFrameSensor(**FRAME, deferrable=True)
with DAG("strict_poke"):
    TidegateFrameSensor(**FRAME, complete_only=True)
with DAG("strict_defer"):
    TidegateFrameSensor(**FRAME, complete_only=True, deferrable=True)
with DAG("short"):
    TidegateFrameSensor(**FRAME | {"retries": 0}, timeout=3, deferrable=True)
with DAG("written"):
    TidegateWatermarkSensor(**WATERMARK, deferrable=True)
with DAG("read"):
    TidegateWatermarkSensor(**WATERMARK, read=True)
