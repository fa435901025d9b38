"""Configurations as the scripts read them: JSON without settings that are off, with derived values."""

import json
from dataclasses import fields
from typing import Any

from tidegate.domain.config import JobConfig
from tidegate.domain.declared import declarations
from tidegate.domain.policy import Policy
from tidegate.domain.throttle import FrameThrottle, MinStepThrottle, Throttle

DERIVED = ("initial_lag", "limit", "accepts_watermarks", "late_share", "enough", "window")
"""Derived values of a policy that the scripts need besides its parameters."""


def compile_config(config: JobConfig) -> str:
    """Return the JSON text for the scripts.

    ``policies`` has the job's policy, then those of the overrides with the ``pieces`` of their patterns.
    """
    compiled = {
        "policies": [
            _policy(config.policy),
            *({**_policy(override.policy), "pieces": override.pattern.split("*")} for override in config.overrides),
        ],
        "throttle": _throttle(config.throttle),
        "expected_queries": list(config.expected_queries),
        **{name: getattr(config, name) for name in declarations(config)},
    }
    return json.dumps({name: value for name, value in compiled.items() if value is not None})


def _policy(policy: Policy) -> dict[str, Any]:
    parameters = {field.name: getattr(policy, field.name) for field in fields(policy)}  # type: ignore[arg-type]
    derived = {name: getattr(policy, name, None) for name in DERIVED}
    return {"type": policy.type, **{name: value for name, value in (parameters | derived).items() if value is not None}}


def _throttle(throttle: Throttle) -> dict[str, Any]:
    match throttle:
        case FrameThrottle(frame):
            return {"type": throttle.type, "slide": frame.slide, "offset": frame.offset}
        case MinStepThrottle(min_step):
            return {"type": throttle.type, "min_step": min_step}
        case _:
            return {"type": throttle.type}
