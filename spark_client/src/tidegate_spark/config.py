"""The rules of a job, as the coordinator takes them: a policy, and with each the same throttles and limits."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, TypedDict, Unpack

from tidegate_spark.errors import InvalidUsage
from tidegate_spark.ids import checked_id

JobConfig = dict[str, Any]
"""The document that ``PUT /v1/jobs/{job}`` takes."""


class Limits(TypedDict, total=False):
    """What every policy may be given beside its own numbers; each is off where it is left out.

    ``frame``: the size of the windows downstream; the watermark then moves once a frame, from boundary to boundary.
    ``slide``: the step between windows, where they overlap; ``frame`` by default. ``offset``: the boundaries' distance
    from the epoch. ``min_step``: in place of a frame, the least step by which the watermark moves.

    ``idle_timeout``: observed silence after which a substream no longer holds the rest back.
    ``max_retention``: how long slower substreams may hold back what one of them has reached.
    ``query_timeout``: after so long without a word from a query, its substreams no longer hold the rest back.
    ``max_batch_hold``: after so long, an open batch no longer holds the watermark at its pin.
    ``delay_half_life``: while event time goes on by so much, what is known of delays fades to half (a day).
    ``max_future_skew``: event times further ahead of the clock move nothing (a day; None: any may be, which event
    times that are no epoch milliseconds need).

    ``overrides``: rules whose policy holds for the substreams that fit a pattern (``*``: any characters); the first
    counts. ``expected_queries``: each holds the watermark from the start, until it has shown its substreams.
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
    """Fixed lag: each substream's watermark trails its top by ``lag``. With the :class:`Limits` of every policy.

    :raises InvalidUsage: for durations that cannot work; so do all the others.
    """
    return _config({"type": "limiting_lag", "lag_ms": milliseconds("lag", lag)}, limits)


def limiting_lag_and_delay(lag: timedelta, max_delay: timedelta, **limits: Unpack[Limits]) -> JobConfig:
    """Fixed lag; and what was a substream's top ``max_delay`` ago is complete by now."""
    return _config(
        {
            "type": "limiting_lag_and_delay",
            "lag_ms": milliseconds("lag", lag),
            "max_delay_ms": milliseconds("max_delay", max_delay, 1),
        },
        limits,
    )


def limiting_lag_and_lull(lag: timedelta, max_lull: timedelta, **limits: Unpack[Limits]) -> JobConfig:
    """Fixed lag; and once a substream saw no event for ``max_lull``, its watermark moves on with the clock."""
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
    """A lag behind a substream's top, and another behind the clock: its watermark is the higher of the two."""
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
    """The least lag under which a share of ``target`` of the rows (0.99) would have been on time: learnt by substream
    from how far rows come behind, and never less than ``floor`` or more than ``ceiling``.

    It is ``cold_start`` until ``min_rows`` were seen of the substream, or of all together; by default so many that ten
    are beyond the target. It widens at once and tightens slowly; where the watermark is by then, it stays. With a
    ``frame`` a row is on time where its window is open.
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
    """Substreams' watermarks are reported ready-made, by a program that knows them; event times move none."""
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
        config["expected_queries"] = [checked_id("query", query) for query in limits["expected_queries"]]
    return config


def _policy_of(pattern: str, override: Any) -> Any:
    if not isinstance(override, dict) or "policy" not in override:
        raise InvalidUsage(f"overrides: {pattern!r} needs rules, like limiting_lag(...); it has {override!r}.")
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
    """Which of the things that ``ours`` says are otherwise in ``theirs``; what it leaves out may be anything."""
    return [name for name, value in ours.items() if theirs.get(name) != value]


def in_the_unit(name: str, duration: Any, of_timestamps: bool, at_least: int = 0) -> int:
    """A length of event time: a timedelta where event times are timestamps, else a whole number in their unit.

    :raises InvalidUsage: for the other of the two, or less than ``at_least``.
    """
    if of_timestamps:
        return milliseconds(name, duration, at_least)
    if not isinstance(duration, int) or isinstance(duration, bool) or duration < at_least:
        raise InvalidUsage(
            f"{name} must be a whole number, {at_least} or more, for the event times are; it is {duration!r}."
        )
    return duration


def milliseconds(name: str, duration: Any, at_least: int = 0) -> int:
    """:raises InvalidUsage: for less than ``at_least`` milliseconds, a fraction of one, or what is no timedelta."""
    if not isinstance(duration, timedelta):
        raise InvalidUsage(f"{name} must be a timedelta; it is {duration!r}.")
    whole, rest = divmod(duration, timedelta(milliseconds=1))
    if whole < at_least or rest:
        raise InvalidUsage(
            f"{name} must be {at_least} ms or more, in whole milliseconds; it is {duration.total_seconds()} s."
        )
    return whole
