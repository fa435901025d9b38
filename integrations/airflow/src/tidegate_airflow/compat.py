"""The names of Airflow that the provider uses. Their modules differ between Airflow 2.11 and 3.3."""

from typing import Any

from airflow.configuration import conf
from airflow.triggers.base import BaseTrigger, TriggerEvent

try:
    from airflow.sdk import BaseHook, BaseOperatorLink, BaseSensorOperator, PokeReturnValue
except ImportError:  # Airflow 2.11 and 3.0
    from airflow.hooks.base import BaseHook
    from airflow.models.baseoperatorlink import BaseOperatorLink
    from airflow.sensors.base import BaseSensorOperator, PokeReturnValue
try:
    from airflow.sdk.exceptions import AirflowException, AirflowFailException
except ImportError:  # Airflow 2.11 and 3.0
    from airflow.exceptions import AirflowException, AirflowFailException

__all__ = [
    "AirflowException",
    "AirflowFailException",
    "BaseHook",
    "BaseOperatorLink",
    "BaseSensorOperator",
    "BaseTrigger",
    "PokeReturnValue",
    "TriggerEvent",
    "conf",
    "connection_of",
]


async def connection_of(conn_id: str) -> Any:
    """Return a connection, from a trigger."""
    if hasattr(BaseHook, "aget_connection"):
        return await BaseHook.aget_connection(conn_id)
    from asgiref.sync import sync_to_async  # Airflow 2.11 and 3.0; they depend on asgiref

    return await sync_to_async(BaseHook.get_connection)(conn_id)
