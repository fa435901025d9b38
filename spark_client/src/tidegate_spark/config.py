"""Constructors of job configurations: a policy, a throttle, and limits."""

import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, TypedDict, Unpack

from tidegate_spark.errors import InvalidUsage

JobConfig = dict[str, Any]
"""The JSON object that ``PUT /v1/jobs/{job}`` accepts."""

_ID = re.compile(r"[A-Za-z0-9._~-]{1,128}")


def check_id(role: str, name: str) -> str:
    """Return ``name``; raise InvalidUsage if the API does not allow it as an id."""
    if not _ID.fullmatch(name):
        raise InvalidUsage(f"{role} {name!r} must be 1 to 128 letters, digits and . _ ~ -")
    return name


class Limits(TypedDict, total=False):
    """Keyword arguments that all policies accept: throttle and limits.

    Durations are in whole milliseconds. A setting that is left out, or None, is off, unless a default is given.

    Attributes:
        frame: Size of the downstream windows. The watermark moves only from window boundary to window boundary.
        slide: Step between the windows, if they overlap; default: ``frame``.
        offset: Distance of the window boundaries from the epoch; default: 0.
        min_step: The smallest step by which the watermark moves. Excludes ``frame``.
        idle_timeout: Silence after which a substream is idle and no longer holds the watermark. Outages do not count.
        max_retention: How long slower substreams may hold back a watermark that one substream has reached.
        query_timeout: Time without a call of a query after which its substreams no longer hold the watermark.
        max_batch_hold: Time after which an open batch no longer holds the watermark.
        delay_half_life: Advance of event time that halves the weight of measured delays; default: a day.
        max_future_skew: Event times further ahead of the clock move no watermark; default: a day. Set None (no limit)
            if event times are not epoch milliseconds.
        overrides: Configurations by substream name pattern (``*``: any characters). The policy of the first match
            replaces the job's for a substream.
        expected_queries: Names of queries that hold the watermark from the start, until they report their substreams.
    """

    frame: timedelta
    slide: timedelta
    offset: timedelta
    min_step: timedelta
    idle_timeout: timedelta | None
    max_retention: timedelta | None
    query_timeout: timedelta | None
    max_batch_hold: timedelta | None
    delay_half_life: timedelta
    max_future_skew: timedelta | None
    overrides: Mapping[str, JobConfig]
    expected_queries: Sequence[str]


def limiting_lag(lag: timedelta, **limits: Unpack[Limits]) -> JobConfig:
    """Return a configuration in which a substream's watermark is ``lag`` below its max event time.

    Args:
        lag: Tolerated disorder, 0 or more, in whole milliseconds.
        limits: See :class:`Limits`.

    Raises:
        InvalidUsage: A duration is too short or not in whole milliseconds, or a limit is unknown or invalid.
    """
    return _config({"type": "limiting_lag", "lag_ms": milliseconds("lag", lag)}, limits)


def limiting_lag_and_delay(lag: timedelta, max_delay: timedelta, **limits: Unpack[Limits]) -> JobConfig:
    """Return a configuration with a fixed lag and a maximum delay.

    Args:
        lag: As in :func:`limiting_lag`.
        max_delay: Processing time after which the watermark reaches an event time that was the max, whatever the lag;
            at least 1 ms.
        limits: See :class:`Limits`.

    Raises:
        InvalidUsage: As in :func:`limiting_lag`.
    """
    return _config(
        {
            "type": "limiting_lag_and_delay",
            "lag_ms": milliseconds("lag", lag),
            "max_delay_ms": milliseconds("max_delay", max_delay, 1),
        },
        limits,
    )


def limiting_lag_and_lull(lag: timedelta, max_lull: timedelta, **limits: Unpack[Limits]) -> JobConfig:
    """Return a configuration with a fixed lag, in which the clock moves the watermark of a silent substream.

    Args:
        lag: As in :func:`limiting_lag`.
        max_lull: Processing time without an event after which a substream's watermark advances with the clock.
        limits: See :class:`Limits`.

    Raises:
        InvalidUsage: As in :func:`limiting_lag`.
    """
    return _config(
        {
            "type": "limiting_lag_and_lull",
            "lag_ms": milliseconds("lag", lag),
            "max_lull_ms": milliseconds("max_lull", max_lull),
        },
        limits,
    )


def limiting_timestamp_and_wall_clock_lag(
    timestamp_lag: timedelta, wall_clock_lag: timedelta, **limits: Unpack[Limits]
) -> JobConfig:
    """Return a configuration with a lag behind the max event time and a lag behind the clock.

    Args:
        timestamp_lag: Lag behind the substream's max event time.
        wall_clock_lag: Lag behind the coordinator's clock. The higher of the two watermarks applies.
        limits: See :class:`Limits`.

    Raises:
        InvalidUsage: As in :func:`limiting_lag`.
    """
    return _config(
        {
            "type": "limiting_timestamp_and_wall_clock_lag",
            "timestamp_lag_ms": milliseconds("timestamp_lag", timestamp_lag),
            "wall_clock_lag_ms": milliseconds("wall_clock_lag", wall_clock_lag),
        },
        limits,
    )


def target_completeness(
    target: float,
    cold_start: timedelta,
    floor: timedelta = timedelta(0),
    ceiling: timedelta | None = None,
    min_rows: int | None = None,
    **limits: Unpack[Limits],
) -> JobConfig:
    """Return a configuration in which each substream has the smallest lag that keeps a share of its rows on time.

    The lag is learned from measured delays. It widens at once and narrows slowly; no watermark goes back. With a
    ``frame``, a row is on time if its window is open.

    Args:
        target: Share of rows to be on time, from 0.5 to 0.999999.
        cold_start: Lag until ``min_rows`` rows are measured.
        floor: Lower bound of the lag.
        ceiling: Upper bound of the lag; None: no bound.
        min_rows: Rows of the substream, or of the whole job, that must be measured before the lag is learned. None: the
            number of which ten are expected beyond the target.
        limits: See :class:`Limits`.

    Raises:
        InvalidUsage: ``target`` is not a number; else as in :func:`limiting_lag`.
    """
    if isinstance(target, bool) or not isinstance(target, (int, float)):
        raise InvalidUsage(f"target must be a share of the rows, like 0.99; it is {target!r}.")
    policy: JobConfig = {
        "type": "target_completeness",
        "target": float(target),
        "cold_start_lag_ms": milliseconds("cold_start", cold_start),
        "floor_ms": milliseconds("floor", floor),
        "ceiling_ms": None if ceiling is None else milliseconds("ceiling", ceiling),
        "min_rows": min_rows,
    }
    return _config(policy, limits)


def reported(**limits: Unpack[Limits]) -> JobConfig:
    """Return a configuration for substreams whose watermarks a program reports; event times move no watermark."""
    return _config({"type": "reported"}, limits)


def _config(policy: JobConfig, limits: Limits) -> JobConfig:
    if unknown := limits.keys() - Limits.__annotations__.keys():
        raise InvalidUsage(
            f"{', '.join(sorted(unknown))}: no such limit; there are {', '.join(Limits.__annotations__)}."
        )
    config: JobConfig = {"policy": policy, "throttle": _throttle(limits)}
    for name in ("idle_timeout", "max_retention", "query_timeout", "max_batch_hold"):
        duration = limits.get(name)
        if duration is not None:
            config[f"{name}_ms"] = milliseconds(name, duration, 1)
    if "delay_half_life" in limits:
        config["delay_half_life_ms"] = milliseconds("delay_half_life", limits["delay_half_life"], 1)
    if "max_future_skew" in limits:
        skew = limits["max_future_skew"]
        config["max_future_skew_ms"] = None if skew is None else milliseconds("max_future_skew", skew)
    if limits.get("overrides"):
        config["overrides"] = [
            {"substreams": pattern, "policy": _policy_of(pattern, override)}
            for pattern, override in limits["overrides"].items()
        ]
    if limits.get("expected_queries"):
        if isinstance(limits["expected_queries"], str):
            raise InvalidUsage(f"expected_queries is a list of names; it is {limits['expected_queries']!r}.")
        config["expected_queries"] = [check_id("query", query) for query in limits["expected_queries"]]
    return config


def _policy_of(pattern: str, override: Any) -> Any:
    if not isinstance(override, dict) or "policy" not in override:
        raise InvalidUsage(
            f"overrides: {pattern!r} needs a configuration, such as limiting_lag(...); it has {override!r}."
        )
    return override["policy"]


def _throttle(limits: Limits) -> JobConfig:
    frame, slide, min_step = limits.get("frame"), limits.get("slide"), limits.get("min_step")
    if frame is None and (slide is not None or "offset" in limits):
        raise InvalidUsage(f"{'slide' if slide else 'offset'} needs frame: the size of the windows.")
    if frame is not None and min_step is not None:
        raise InvalidUsage("frame and min_step are two ways to throttle; choose one.")
    if min_step is not None:
        return {"type": "min_step", "min_step_ms": milliseconds("min_step", min_step, 1)}
    if frame is None:
        return {"type": "none"}
    return {
        "type": "frame",
        "size_ms": milliseconds("frame", frame, 1),
        "slide_ms": milliseconds("slide", frame if slide is None else slide, 1),
        "offset_ms": milliseconds("offset", limits.get("offset", timedelta(0))),
    }


def differing(theirs: JobConfig, ours: JobConfig) -> list[str]:
    """Return the members of ``ours`` whose values differ in ``theirs``."""
    return [name for name, value in ours.items() if theirs.get(name) != value]


def event_time_length(name: str, length: Any, of_timestamps: bool, at_least: int = 0) -> int:
    """Return a length of event time as a number, in the unit of the event times.

    Args:
        name: Name of the argument, for errors.
        length: A timedelta if the event times are timestamps, else a whole number in their unit.
        of_timestamps: Whether the event times are timestamps.
        at_least: Lower bound.

    Raises:
        InvalidUsage: The length has the wrong type, or is below ``at_least``.
    """
    if of_timestamps:
        return milliseconds(name, length, at_least)
    if not isinstance(length, int) or isinstance(length, bool) or length < at_least:
        raise InvalidUsage(
            f"{name} must be a whole number, {at_least} or more, for the event times are; it is {length!r}."
        )
    return length


def milliseconds(name: str, duration: Any, at_least: int = 0) -> int:
    """Return a duration in milliseconds; raise InvalidUsage unless it is a whole number, ``at_least`` or more."""
    if not isinstance(duration, timedelta):
        raise InvalidUsage(f"{name} must be a timedelta; it is {duration!r}.")
    whole, rest = divmod(duration, timedelta(milliseconds=1))
    if whole < at_least or rest:
        raise InvalidUsage(
            f"{name} must be {at_least} ms or more, in whole milliseconds; it is {duration.total_seconds()} s."
        )
    return whole
