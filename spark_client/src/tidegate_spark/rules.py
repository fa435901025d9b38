"""The rules of a job, as the coordinator takes them."""

from datetime import timedelta
from typing import Any

from tidegate_spark.errors import InvalidUsage

Rules = dict[str, Any]
"""The document that ``PUT /v1/jobs/{job}`` takes."""


def limiting_lag(
    lag: timedelta,
    *,
    frame: timedelta | None = None,
    slide: timedelta | None = None,
    offset: timedelta = timedelta(0),
    idle_timeout: timedelta | None = None,
) -> Rules:
    """Fixed lag: each substream's watermark trails its top by ``lag``.

    :param frame: the size of the windows downstream; the watermark then moves once a frame, from boundary to boundary.
    :param slide: the step between windows, where they overlap; ``frame`` by default.
    :param offset: the boundaries' distance from the epoch.
    :param idle_timeout: observed silence after which a substream no longer holds the rest back; None: never.
    :raises InvalidUsage: for a duration that cannot work.
    """
    if slide is not None and frame is None:
        raise InvalidUsage("slide needs frame: the size of the windows.")
    throttle: Rules = {"type": "none"}
    if frame is not None:
        throttle = {
            "type": "frame",
            "size_ms": milliseconds("frame", frame, 1),
            "slide_ms": milliseconds("slide", frame if slide is None else slide, 1),
            "offset_ms": milliseconds("offset", offset),
        }
    return {
        "policy": {"type": "limiting_lag", "lag_ms": milliseconds("lag", lag)},
        "throttle": throttle,
        "idle_timeout_ms": None if idle_timeout is None else milliseconds("idle_timeout", idle_timeout, 1),
    }


def milliseconds(name: str, duration: timedelta, at_least: int = 0) -> int:
    """:raises InvalidUsage: for less than ``at_least`` milliseconds, or a fraction of one."""
    whole, rest = divmod(duration, timedelta(milliseconds=1))
    if whole < at_least or rest:
        raise InvalidUsage(
            f"{name} must be {at_least} ms or more, in whole milliseconds; it is {duration.total_seconds()} s."
        )
    return whole
