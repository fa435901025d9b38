"""Coordinated event-time watermarks for Spark Structured Streaming.

::

    job = tidegate_spark.connect("http://coordinator:8000", job="flights",
                                 config=tidegate_spark.limiting_lag(timedelta(minutes=30)))
    query = (job.stream(flights, event_time="departed_at", substream="dest")
                 .late_output(write_late)
                 .foreach_batch(write)
                 .start(queryName="departures", checkpointLocation=path))

``write(df, batch_id)`` receives the on-time rows. ``write(df, batch_id, batch)`` also receives the :class:`Batch`, with
the attributes ``watermark`` and ``job_watermark``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tidegate_spark.batch import Batch, Committed, Holder
from tidegate_spark.claims import Claim
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
    UnsafeWrite,
)
from tidegate_spark.substreams import SOURCE_PARTITION

if TYPE_CHECKING:
    from tidegate_spark.auditing.audit import Audit, audit, audit_input
    from tidegate_spark.complete import complete_up_to
    from tidegate_spark.job import Job, connect
    from tidegate_spark.stream import Stream

__all__ = [
    "SOURCE_PARTITION",
    "Audit",
    "Batch",
    "Claim",
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
    "UnsafeWrite",
    "audit",
    "audit_input",
    "complete_up_to",
    "connect",
    "limiting_lag",
    "limiting_lag_and_delay",
    "limiting_lag_and_lull",
    "limiting_timestamp_and_wall_clock_lag",
    "reported",
    "target_completeness",
]
__version__ = "0.1.0"

_MODULES = {
    "Audit": "auditing.audit",
    "Job": "job",
    "Stream": "stream",
    "audit": "auditing.audit",
    "audit_input": "auditing.audit",
    "complete_up_to": "complete",
    "connect": "job",
}
"""Names that are imported on first use, with the modules that define them."""


def __getattr__(name: str) -> Any:
    # Executors need only the reporter and must not import httpx or PySpark's DataFrame, so imports are lazy (PEP 562).
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
