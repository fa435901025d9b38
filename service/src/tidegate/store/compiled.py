"""The configuration of a job for the functions in Redis: JSON with derived values, without settings that are off."""

import json
import re
from typing import Any

from tidegate.domain.config import JobConfig, Throttle
from tidegate.domain.policies import Policy
from tidegate.domain.values import declarations

DERIVED = ("follows_clock", "initial_lag", "limit", "accepts_watermarks", "late_share", "enough", "window", "slide")
"""Derived values of a policy or a throttle that the functions need in addition to its parameters."""

UNUSED = ("max_lag_ms",)
"""Settings that the functions do not need, because they change neither a watermark nor a record."""


def compile_config(config: JobConfig) -> str:
    """Return the JSON text for the functions in Redis.

    ``policies`` contains the policy of the job, then the policies of the overrides with the ``pieces`` of their
    patterns.
    """
    compiled = {
        "policies": [
            _record(config.policy),
            *(
                {**_record(override.policy), "pieces": re.split(r"\*+", override.pattern)}
                for override in config.overrides
            ),
        ],
        "throttle": _record(config.throttle),
        "expected_queries": list(config.expected_queries),
        **{name: getattr(config, name) for name in declarations(config) if name not in UNUSED},
        "freezes_idle": config.freezes_idle or None,
    }
    return json.dumps({name: value for name, value in compiled.items() if value is not None})


def _record(strategy: Policy | Throttle) -> dict[str, Any]:
    values = {name: getattr(strategy, name, None) for name in (*declarations(strategy), *DERIVED)}
    return {"type": strategy.type, **{name: value for name, value in values.items() if value is not None}}
