"""The configuration of a job, as the coordinator takes it: a policy, a throttle, and limits."""

import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, TypedDict, Unpack

from tidegate_spark.errors import InvalidUsage

JobConfig = dict[str, Any]
"""The document that ``PUT /v1/jobs/{job}`` takes."""

_ID = re.compile(r"[A-Za-z0-9._~-]{1,128}")


def check_id(role: str, name: str) -> str:
    """Return ``name``; raise InvalidUsage if it has other characters than the API allows in paths."""
    if not _ID.fullmatch(name):
        raise InvalidUsage(f"{role} {name!r} must be 1 to 128 letters, digits and . _ ~ -")
    return name


class Limits(TypedDict, total=False):
    """What every policy takes besides its own arguments. A limit that is left out is off.

    Attributes:
        frame: Size of the windows downstream. The watermark moves from window boundary to window boundary.
        slide: Step between the windows, if they overlap; default: ``frame``.
        offset: Distance of the boundaries from the epoch.
        min_step: In place of a frame: the least step by which the watermark moves.
        idle_timeout: A substream that is silent for so long no longer holds the watermark.
        max_retention: How long slower substreams may hold back an event time that one substream has reached.
        query_timeout: The substreams of a query that is silent for so long no longer hold the watermark.
        max_batch_hold: An open batch holds the watermark at its pinned watermark for so long at most.
        delay_half_life: Advance of event time after which measured delays count half (default: a day).
        max_future_skew: Event times further ahead of the clock move no watermark (default: a day). None: no limit, for
            event times that are not epoch milliseconds.
        overrides: By substream name pattern (``*``: any characters), a configuration whose policy holds for the
            matching substreams. The first match wins.
        expected_queries: Queries that hold the watermark from the start, until they have reported their substreams.
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
        lag: The lag.
        limits: See :class:`Limits`; all policies take them.

    Raises:
        InvalidUsage: A duration cannot work.
    """
    return _config({"type": "limiting_lag", "lag_ms": milliseconds("lag", lag)}, limits)


def limiting_lag_and_delay(lag: timedelta, max_delay: timedelta, **limits: Unpack[Limits]) -> JobConfig:
    """Return a configuration with a fixed lag, in which a max event time of ``max_delay`` ago is complete by now."""
    return _config(
        {
            "type": "limiting_lag_and_delay",
            "lag_ms": milliseconds("lag", lag),
            "max_delay_ms": milliseconds("max_delay", max_delay, 1),
        },
        limits,
    )


def limiting_lag_and_lull(lag: timedelta, max_lull: timedelta, **limits: Unpack[Limits]) -> JobConfig:
    """Return a configuration with a fixed lag, in which the clock moves a substream without events for ``max_lull``."""
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
    """Return a configuration with a lag behind the max event time and another behind the clock; the higher wins."""
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
    """Return a configuration in which each substream has the least lag that makes a share of its rows be on time.

    The lag is learned from measured delays. It widens at once and narrows slowly, and no watermark goes back. With a
    ``frame``, a row is on time if its window is open.

    Args:
        target: The share, such as 0.99.
        cold_start: The lag until ``min_rows`` were seen.
        floor: Least lag.
        ceiling: Greatest lag; None: no limit.
        min_rows: Rows of the substream, or of all together. Default: so many that ten are beyond the target.
        limits: See :class:`Limits`.
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
    """Return a configuration in which a program reports the watermarks of substreams; event times move none."""
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
    """Return the members of ``ours`` that ``theirs`` has other values for."""
    return [name for name, value in ours.items() if theirs.get(name) != value]


def event_time_length(name: str, length: Any, of_timestamps: bool, at_least: int = 0) -> int:
    """Return a length of event time as a number.

    Args:
        name: Name of the argument.
        length: A timedelta if the event times are timestamps, else a whole number in their unit.
        of_timestamps: Whether the event times are timestamps.
        at_least: Least value.

    Raises:
        InvalidUsage: The length is of the other kind, or too small.
    """
    if of_timestamps:
        return milliseconds(name, length, at_least)
    if not isinstance(length, int) or isinstance(length, bool) or length < at_least:
        raise InvalidUsage(
            f"{name} must be a whole number, {at_least} or more, for the event times are; it is {length!r}."
        )
    return length


def milliseconds(name: str, duration: Any, at_least: int = 0) -> int:
    """Return a duration in milliseconds; raise InvalidUsage unless they are a whole number, ``at_least`` or more."""
    if not isinstance(duration, timedelta):
        raise InvalidUsage(f"{name} must be a timedelta; it is {duration!r}.")
    whole, rest = divmod(duration, timedelta(milliseconds=1))
    if whole < at_least or rest:
        raise InvalidUsage(
            f"{name} must be {at_least} ms or more, in whole milliseconds; it is {duration.total_seconds()} s."
        )
    return whole
