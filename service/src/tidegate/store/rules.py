"""The rules of a job as its scripts read them: JSON, with nothing in it that is off."""

import json
from typing import Any

from tidegate.domain.config import JobConfig
from tidegate.domain.policy import (
    LimitingLag,
    LimitingLagAndDelay,
    LimitingLagAndLull,
    LimitingTimestampAndWallClockLag,
    Policy,
    Reported,
    TargetCompleteness,
)
from tidegate.domain.throttle import FrameThrottle, MinStepThrottle, Throttle


def rules(config: JobConfig) -> str:
    """``policies``: the job's, then the overrides with the ``pieces`` of their patterns; times in milliseconds."""
    document = {
        "policies": [
            _policy(config.policy),
            *({**_policy(o.policy), "pieces": o.pattern.split("*")} for o in config.overrides),
        ],
        "throttle": _throttle(config.throttle),
        "idle_timeout": config.idle_timeout_ms,
        "max_retention": config.max_retention_ms,
        "query_timeout": config.query_timeout_ms,
        "max_batch_hold": config.max_batch_hold_ms,
        "delay_half_life": config.delay_half_life_ms,
        "max_future_skew": config.max_future_skew_ms,
        "expected": list(config.expected_queries) or None,
    }
    return json.dumps({name: value for name, value in document.items() if value is not None})


def _policy(policy: Policy) -> dict[str, Any]:
    match policy:
        case LimitingLag(lag):
            return {"type": "limiting_lag", "lag": lag}
        case LimitingLagAndDelay(lag, max_delay_ms):
            return {"type": "limiting_lag_and_delay", "lag": lag, "max_delay": max_delay_ms}
        case LimitingLagAndLull(lag, max_lull_ms):
            return {"type": "limiting_lag_and_lull", "lag": lag, "max_lull": max_lull_ms}
        case LimitingTimestampAndWallClockLag(timestamp_lag, wall_clock_lag):
            return {
                "type": "limiting_timestamp_and_wall_clock_lag",
                "lag": timestamp_lag,
                "wall_clock_lag": wall_clock_lag,
            }
        case TargetCompleteness():
            numbers = {
                "late_share": policy.late_share,
                "enough": policy.enough,
                "window": policy.window,
                "cold_start": policy.cold_start,
                "floor": policy.floor,
                "ceiling": policy.ceiling,
            }
            present = {name: value for name, value in numbers.items() if value is not None}
            return {"type": "target_completeness", **present}
        case Reported():
            return {"type": "reported"}
        case _:
            raise TypeError(f"the scripts know no {policy!r}")


def _throttle(throttle: Throttle) -> dict[str, Any] | None:
    match throttle:
        case FrameThrottle(frame):
            return {"type": "frame", "slide": frame.slide, "offset": frame.offset}
        case MinStepThrottle(min_step):
            return {"type": "min_step", "min_step": min_step}
        case _:
            return None
