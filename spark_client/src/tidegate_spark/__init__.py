"""Coordinated event-time watermarks for Spark Structured Streaming.

::

    job = tidegate_spark.connect("http://coordinator:8000", job="flights",
                                 config=tidegate_spark.limiting_lag(timedelta(minutes=30)))
    query = (job.stream(flights, event_time="departed_at", substream="dest")
                 .late_output(write_late)
                 .foreach_batch(write)
                 .start(queryName="departures", checkpointLocation=path))

``write(df, batch_id)`` receives the rows that are on time. ``batch_id`` is a :class:`Batch`, with the attributes
``watermark`` and ``job_watermark``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidegate_spark.batch import Batch, Committed, Holder
    from tidegate_spark.config import (
        JobConfig,
        Limits,
        limiting_lag,
        limiting_lag_and_delay,
        limiting_lag_and_lull,
        limiting_timestamp_and_wall_clock_lag,
        reported,
        target_completeness,
    )
    from tidegate_spark.errors import (
        CoordinatorUnavailable,
        InvalidUsage,
        JobDeleted,
        JobMissing,
        Refused,
        TidegateError,
    )
    from tidegate_spark.job import Job, connect
    from tidegate_spark.stream import Stream
    from tidegate_spark.substreams import SOURCE_PARTITION

__all__ = [
    "SOURCE_PARTITION",
    "Batch",
    "Committed",
    "CoordinatorUnavailable",
    "Holder",
    "InvalidUsage",
    "Job",
    "JobConfig",
    "JobDeleted",
    "JobMissing",
    "Limits",
    "Refused",
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

_NAMES = {
    "batch": ("Batch", "Committed", "Holder"),
    "config": ("JobConfig", "Limits", *(name for name in __all__ if name[0].islower() and name != "connect")),
    "errors": ("CoordinatorUnavailable", "InvalidUsage", "JobDeleted", "JobMissing", "Refused", "TidegateError"),
    "job": ("Job", "connect"),
    "stream": ("Stream",),
    "substreams": ("SOURCE_PARTITION",),
}
HOMES = {name: module for module, names in _NAMES.items() for name in names}
"""The module that defines each public name."""


def __getattr__(name: str) -> Any:
    # Import on first use (PEP 562): an executor's worker needs only the reporter and must not import httpx.
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{HOMES[name]}"), name)
