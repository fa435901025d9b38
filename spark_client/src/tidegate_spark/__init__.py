"""Coordinated event-time watermarks for Spark Structured Streaming.

::

    gate = tidegate_spark.connect("http://coordinator:8000", job="flights",
                                  rules=tidegate_spark.limiting_lag(timedelta(minutes=30)))
    query = (gate.stream(flights, event_time="departed_at", substream="dest")
                 .late_to(write_late)
                 .foreach_batch(write)
                 .start(queryName="departures", checkpointLocation=path))

``write(df, batch_id)`` stays as it was: it receives the rows that are on time, and ``batch_id`` also carries
``batch_id.pin`` and ``batch_id.watermark``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidegate_spark.batch import Batch, Committed, Holder
    from tidegate_spark.errors import (
        CoordinatorUnavailable,
        InvalidUsage,
        JobDeleted,
        JobMissing,
        Refused,
        TidegateError,
    )
    from tidegate_spark.gate import Gate, connect
    from tidegate_spark.rules import (
        Limits,
        Rules,
        limiting_lag,
        limiting_lag_and_delay,
        limiting_lag_and_lull,
        limiting_timestamp_and_wall_clock_lag,
        reported,
        target_completeness,
    )
    from tidegate_spark.stream import Stream
    from tidegate_spark.substreams import SOURCE_PARTITION

__all__ = [
    "SOURCE_PARTITION",
    "Batch",
    "Committed",
    "CoordinatorUnavailable",
    "Gate",
    "Holder",
    "InvalidUsage",
    "JobDeleted",
    "JobMissing",
    "Limits",
    "Refused",
    "Rules",
    "Stream",
    "TidegateError",
    "connect",
    "limiting_lag",
    "limiting_lag_and_delay",
    "limiting_lag_and_lull",
    "limiting_timestamp_and_wall_clock_lag",
    "reported",
    "target_completeness",
]
__version__ = "0.1.0"

HOMES = {
    "Batch": "batch",
    "Committed": "batch",
    "CoordinatorUnavailable": "errors",
    "Gate": "gate",
    "Holder": "batch",
    "InvalidUsage": "errors",
    "JobDeleted": "errors",
    "JobMissing": "errors",
    "Limits": "rules",
    "Refused": "errors",
    "Rules": "rules",
    "SOURCE_PARTITION": "substreams",
    "Stream": "stream",
    "TidegateError": "errors",
    "connect": "gate",
    "limiting_lag": "rules",
    "limiting_lag_and_delay": "rules",
    "limiting_lag_and_lull": "rules",
    "limiting_timestamp_and_wall_clock_lag": "rules",
    "target_completeness": "rules",
    "reported": "rules",
}


def __getattr__(name: str) -> Any:
    # Imported when asked for (PEP 562): an executor's worker needs the reporter alone, and must not pay for httpx.
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{HOMES[name]}"), name)
