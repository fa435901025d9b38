"""Functions that return job configurations: a policy, a throttle and limits."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal, TypedDict, Unpack

from tidegate_spark.errors import InvalidUsage

JobConfig = dict[str, Any]
"""The JSON object that ``PUT /v1/jobs/{job}`` accepts."""

_ID = re.compile(r"[A-Za-z0-9._~-]{1,128}")
_PATH_SEGMENTS = (".", "..")
"""Names that HTTP clients and proxies remove from a path."""


def check_id(role: str, name: Any) -> str:
    """Return ``name``; raise InvalidUsage if the API does not allow it as an id."""
    if not isinstance(name, str) or not _ID.fullmatch(name) or name in _PATH_SEGMENTS:
        raise InvalidUsage(f"{role} {name!r} must be 1 to 128 letters, digits and . _ ~ -, but not . or .. alone")
    return name


def check_config(argument: str, config: Any) -> JobConfig:
    """Return a configuration; raise InvalidUsage if it has no policy, or JSON cannot represent it."""
    if not isinstance(config, dict) or "policy" not in config:
        raise InvalidUsage(f"{argument} needs a configuration, such as limiting_lag(...); it is {config!r}.")
    try:
        json.dumps(config, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidUsage(f"{argument} must have values of JSON only ({error}); it is {config!r}.") from None
    return config


_LONGEST_LAG = ("lag_ms", "timestamp_lag_ms", "ceiling_ms")
"""The setting that limits the lag of a policy. ``reported`` has none; that of ``target_completeness`` may be null."""


class Limits(TypedDict, total=False):
    """Keyword arguments that all policies accept: throttle and limits.

    Durations are timedeltas in whole milliseconds. An omitted setting is off unless it has a default. None turns a
    limit off.

    Attributes:
        frame: Size of the downstream windows. The watermark moves only to window boundaries.
        slide: Step from one window to the next; default: ``frame``.
        offset: Distance of the window boundaries from the epoch; default: 0.
        min_step: Smallest step by which the watermark moves. ``min_step`` and ``frame`` cannot be combined.
        idle_timeout: Silence after which a substream is idle and no longer holds the watermark. Outages do not count.
        max_retention: Maximum time for which slower substreams hold the watermark below the fastest substream.
        max_skew: Maximum distance, in event time, of a substream's watermark behind the median of the substreams. A
            substream that is further behind no longer holds the watermark until it catches up.
        arrival_target: Share of the rows that arrive before their frame is complete, from 0.5 to 0.999999. The
            coordinator learns how long after their frame this share of the rows arrives. For silent substreams, the
            watermark then waits no longer, once the queries have read all input. It needs ``frames``.
        max_arrival_delay: This time until it is learned, and its upper bound; default: 1 day. Rows that arrive later
            teach nothing.
        query_timeout: Time without a call from a query after which its substreams no longer hold the watermark.
        max_batch_hold: Time after which an open batch no longer holds the watermark.
        delay_half_life: Span of event time after which the weight of measured delays has halved; default: 1 day.
        max_future_skew: Maximum distance of event times ahead of the clock; default: 1 day. Later event times move no
            watermark. Set it to None if event times are not epoch milliseconds.
        max_lag: Lag of the watermark behind processing time above which the health of the job is ``lagging``. It moves
            no watermark.
        overrides: Configurations by substream name pattern (``*`` matches any characters). The policy of the first
            match replaces the job's policy.
        expected_queries: Names of queries that hold the watermark from the start until they report their substreams.
        frames: Length of the job's frames: ``"hour"``, ``"day"``, ``"month"``, or a duration. The coordinator records
            whether each frame is complete. Default: no frames.
        frames_offset: Distance of the starts of the frames from the epoch, or from midnight; default: 0.
        time_zone: Name of the time zone of days and months, such as ``"America/New_York"``; default: UTC.
        correction_delay: Time for which changes of a finished frame are collected before they make a new generation of
            it; default: 1 minute.
    """

    frame: timedelta
    slide: timedelta
    offset: timedelta
    min_step: timedelta
    idle_timeout: timedelta | None
    max_retention: timedelta | None
    max_skew: timedelta | None
    arrival_target: float | None
    max_arrival_delay: timedelta
    query_timeout: timedelta | None
    max_batch_hold: timedelta | None
    delay_half_life: timedelta
    max_future_skew: timedelta | None
    max_lag: timedelta | None
    overrides: Mapping[str, JobConfig]
    expected_queries: Sequence[str]
    frames: Literal["hour", "day", "month"] | timedelta
    frames_offset: timedelta
    time_zone: str
    correction_delay: timedelta


LOWEST_TARGET, HIGHEST_TARGET = 0.5, 0.999999
"""Bounds of the share of rows at which ``target_completeness`` and ``arrival_target`` aim."""

_POSITIVE = {
    "max_delay",
    "idle_timeout",
    "max_retention",
    "max_skew",
    "max_arrival_delay",
    "query_timeout",
    "max_batch_hold",
    "delay_half_life",
    "max_lag",
}
"""Durations that must be 1 ms or more."""


def limiting_lag(lag: timedelta, **limits: Unpack[Limits]) -> JobConfig:
    """Return a configuration in which a substream's watermark is ``lag`` below its max event time.

    Args:
        lag: Tolerated disorder, 0 or more, in whole milliseconds.
        limits: See :class:`Limits`.

    Raises:
        InvalidUsage: If a duration is too short or not in whole milliseconds, or a limit is unknown or invalid.
    """
    return _config(_policy("limiting_lag", lag=lag), limits)


def limiting_lag_and_delay(lag: timedelta, max_delay: timedelta, **limits: Unpack[Limits]) -> JobConfig:
    """Return a configuration with a fixed lag and a maximum delay.

    Args:
        lag: As in :func:`limiting_lag`.
        max_delay: Processing time after which the watermark reaches an observed max event time, regardless of the lag;
            at least 1 ms.
        limits: See :class:`Limits`.

    Raises:
        InvalidUsage: If an argument is invalid, as in :func:`limiting_lag`.
    """
    return _config(_policy("limiting_lag_and_delay", lag=lag, max_delay=max_delay), limits)


def limiting_lag_and_lull(lag: timedelta, max_lull: timedelta, **limits: Unpack[Limits]) -> JobConfig:
    """Return a configuration with a fixed lag, in which the clock moves the watermark of a silent substream.

    Args:
        lag: As in :func:`limiting_lag`.
        max_lull: Processing time without an event after which a substream's watermark advances with the clock.
        limits: See :class:`Limits`.

    Raises:
        InvalidUsage: If an argument is invalid, as in :func:`limiting_lag`.
    """
    return _config(_policy("limiting_lag_and_lull", lag=lag, max_lull=max_lull), limits)


def limiting_timestamp_and_wall_clock_lag(
    timestamp_lag: timedelta, wall_clock_lag: timedelta, **limits: Unpack[Limits]
) -> JobConfig:
    """Return a configuration with a lag behind the max event time and a lag behind the clock.

    Args:
        timestamp_lag: Lag behind the substream's max event time.
        wall_clock_lag: Lag behind the coordinator's clock. The higher of the two watermarks applies.
        limits: See :class:`Limits`.

    Raises:
        InvalidUsage: If an argument is invalid, as in :func:`limiting_lag`.
    """
    policy = _policy(
        "limiting_timestamp_and_wall_clock_lag", timestamp_lag=timestamp_lag, wall_clock_lag=wall_clock_lag
    )
    return _config(policy, limits)


def target_completeness(
    target: float,
    cold_start: timedelta,
    floor: timedelta = timedelta(0),
    ceiling: timedelta | None = None,
    min_rows: int | None = None,
    **limits: Unpack[Limits],
) -> JobConfig:
    """Return a configuration in which each substream has the smallest lag that keeps a share of its rows on time.

    The coordinator learns the lag from measured delays. The lag widens at once and narrows slowly. No watermark goes
    back. With a ``frame``, a row is on time if its window is open.

    Args:
        target: Share of rows to be on time, from 0.5 to 0.999999.
        cold_start: Lag until ``min_rows`` rows are measured.
        floor: Lower bound of the lag.
        ceiling: Upper bound of the lag; None for no bound.
        min_rows: Minimum number of measured rows, of the substream or the job, before the coordinator learns the lag.
            Default: the number of rows of which the target allows ten to be late.
        limits: See :class:`Limits`.

    Raises:
        InvalidUsage: If ``target`` is not such a share, or another argument is invalid as in :func:`limiting_lag`.
    """
    share = share_of_rows("target", target)
    if min_rows is not None and (isinstance(min_rows, bool) or not isinstance(min_rows, int) or min_rows < 1):
        raise InvalidUsage(f"min_rows must be a whole number, 1 or more; it is {min_rows!r}.")
    policy: JobConfig = {
        "type": "target_completeness",
        "target": share,
        "cold_start_lag_ms": milliseconds("cold_start", cold_start),
        "floor_ms": milliseconds("floor", floor),
        "ceiling_ms": None if ceiling is None else milliseconds("ceiling", ceiling),
        "min_rows": min_rows,
    }
    return _config(policy, limits)


def reported(**limits: Unpack[Limits]) -> JobConfig:
    """Return a configuration for substreams whose watermarks a program reports. Event times move no watermark."""
    return _config({"type": "reported"}, limits)


def longest_lag_ms(config: JobConfig) -> int | None:
    """Return the longest lag that a configuration gives to a substream; None if a policy has no longest lag."""
    longest = 0
    for policy in [config.get("policy", {}), *(override["policy"] for override in config.get("overrides") or ())]:
        lag_ms = next((policy[name] for name in _LONGEST_LAG if policy.get(name) is not None), None)
        if lag_ms is None:
            return None
        longest = max(longest, lag_ms)
    return longest


def _policy(kind: str, **durations: timedelta) -> JobConfig:
    return {"type": kind} | {f"{name}_ms": _milliseconds(name, duration) for name, duration in durations.items()}


def _milliseconds(name: str, duration: Any) -> int:
    return milliseconds(name, duration, 1 if name in _POSITIVE else 0)


def share_of_rows(name: str, share: Any) -> float:
    """Return a target; raise InvalidUsage if it is none."""
    is_number = isinstance(share, (int, float)) and not isinstance(share, bool)
    if not is_number or not LOWEST_TARGET <= share <= HIGHEST_TARGET:
        raise InvalidUsage(
            f"{name} must be a share of the rows from {LOWEST_TARGET} to {HIGHEST_TARGET}, like 0.99; it is {share!r}."
        )
    return float(share)


def _config(policy: JobConfig, limits: Limits) -> JobConfig:
    check_keywords("limit", limits, Limits)
    config: JobConfig = {"policy": policy, "throttle": _throttle(limits)}
    for name, duration in limits.items():
        if name in _POSITIVE or name == "max_future_skew":
            config[f"{name}_ms"] = None if duration is None else _milliseconds(name, duration)
    if "arrival_target" in limits:
        target = limits["arrival_target"]
        config["arrival_target"] = None if target is None else share_of_rows("arrival_target", target)
        if target is not None and limits.get("frames") is None:
            raise InvalidUsage("arrival_target needs frames, such as frames='hour'; set frames too.")
    if limits.get("overrides"):
        if not isinstance(limits["overrides"], Mapping):
            raise InvalidUsage(
                f"overrides must be a dict of configurations by substream name pattern; it is {limits['overrides']!r}."
            )
        config["overrides"] = [_override(pattern, override) for pattern, override in limits["overrides"].items()]
    if limits.get("expected_queries"):
        if isinstance(limits["expected_queries"], str) or not isinstance(limits["expected_queries"], Iterable):
            raise InvalidUsage(
                f"expected_queries must be a list of names; it is {limits['expected_queries']!r}. Pass a list "
                "with this name."
            )
        config["expected_queries"] = [check_id("query", query) for query in limits["expected_queries"]]
    frames = _frames(limits)
    return config if frames is None else config | {"frames": frames}


def check_keywords(kind: str, given: Mapping[str, object], known: type) -> None:
    """Raise InvalidUsage if ``given`` has a name that the TypedDict ``known`` lacks. ``kind`` is the noun in errors."""
    if unknown := given.keys() - known.__annotations__.keys():
        raise InvalidUsage(
            f"{', '.join(sorted(unknown))}: unknown {kind}; expected one of {', '.join(known.__annotations__)}."
        )


def _override(pattern: Any, config: Any) -> JobConfig:
    if not isinstance(pattern, str):
        raise InvalidUsage(f"overrides: a substream name pattern must be a text; it is {pattern!r}.")
    return {"substreams": pattern, "policy": check_config(f"overrides: {pattern!r}", config)["policy"]}


_UNITS = ("hour", "day", "month")


def _frames(limits: Limits) -> dict[str, Any] | None:
    every, zone = limits.get("frames"), limits.get("time_zone")
    if every is None:
        if alone := [name for name in ("frames_offset", "time_zone", "correction_delay") if name in limits]:
            raise InvalidUsage(f"{alone[0]} needs frames, such as frames='hour'; set frames too.")
        return None
    if isinstance(every, str) and every not in _UNITS:
        raise InvalidUsage(f"frames must be a timedelta or one of {', '.join(_UNITS)}; it is {every!r}.")
    if zone is not None and not isinstance(zone, str):
        raise InvalidUsage(f"time_zone must be a name such as 'America/New_York'; it is {zone!r}.")
    return {
        "every": every if isinstance(every, str) else milliseconds("frames", every, 1),
        "time_zone": zone,
        "offset_ms": milliseconds("frames_offset", limits.get("frames_offset", timedelta(0))),
        "correction_delay_ms": milliseconds("correction_delay", limits.get("correction_delay", timedelta(minutes=1))),
    }


def _throttle(limits: Limits) -> JobConfig:
    frame, slide, min_step = limits.get("frame"), limits.get("slide"), limits.get("min_step")
    if frame is None and (slide is not None or "offset" in limits):
        raise InvalidUsage(f"{'slide' if slide else 'offset'} needs frame, the size of the windows; set frame too.")
    if frame is not None and min_step is not None:
        raise InvalidUsage("frame and min_step cannot be combined; choose one of them.")
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


def event_time_length(name: str, length: Any, of_timestamps: bool, at_least: int = 0) -> int:
    """Return a length of event time as a number, in the unit of the event times.

    Args:
        name: Name of the argument, for errors.
        length: A timedelta if the event times are timestamps, else a whole number in the unit of the event times.
        of_timestamps: Whether the event times are timestamps.
        at_least: Lower bound.

    Raises:
        InvalidUsage: If the length has the wrong type, or is below ``at_least``.
    """
    if of_timestamps:
        return milliseconds(name, length, at_least)
    if not isinstance(length, int) or isinstance(length, bool) or length < at_least:
        raise InvalidUsage(
            f"{name} must be a whole number, {at_least} or more, in the unit of the event times; it is {length!r}."
        )
    return length


def milliseconds(name: str, duration: Any, at_least: int = 0) -> int:
    """Return a duration in milliseconds; raise InvalidUsage if it is below ``at_least`` or not a whole number."""
    if not isinstance(duration, timedelta):
        raise InvalidUsage(f"{name} must be a timedelta; it is {duration!r}.")
    whole, rest = divmod(duration, timedelta(milliseconds=1))
    if whole < at_least or rest:
        raise InvalidUsage(
            f"{name} must be {at_least} ms or more, in whole milliseconds; it is "
            f"{duration / timedelta(milliseconds=1):.15g} ms."
        )
    return whole
