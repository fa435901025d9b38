"""The traces, read from files with one JSON object per line."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidegate.domain.policies import (
    LimitingLag,
    LimitingLagAndDelay,
    LimitingLagAndLull,
    LimitingTimestampAndWallClockLag,
    Policy,
)
from tidegate.domain.values import EXACT_DOUBLE

FILES = ("policies", "throttle", "coalescer", "event_time_mapper", "sliding_window")

Json = dict[str, Any]


@dataclass(frozen=True)
class Trace:
    """A trace. Each step has the members ``at_ms``, ``op`` and ``expect``."""

    name: str
    tags: tuple[str, ...]
    config: Json
    steps: tuple[Json, ...]

    def exact_in_doubles(self) -> bool:
        """Return whether all numbers of the trace are in the range of the API and the store."""
        return all(
            EXACT_DOUBLE.lowest <= number <= EXACT_DOUBLE.highest for number in _numbers([self.config, *self.steps])
        )


def _numbers(found: object) -> list[int]:
    if isinstance(found, dict):
        return _numbers(list(found.values()))
    if isinstance(found, list):
        return [number for item in found for number in _numbers(item)]
    return [found] if isinstance(found, int) else []


def read(file: Path) -> list[Trace]:
    """Return the traces in a file.

    Raises:
        ValueError: If a line is not a trace.
    """
    traces = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        try:
            raw = json.loads(line)
            traces.append(Trace(raw["name"], tuple(raw.get("tags", ())), raw["config"], tuple(raw["steps"])))
        except (ValueError, KeyError) as error:
            raise ValueError(f"{file}:{number} is not a trace: {error!r}") from error
    return traces


NEVER = 2**52
"""A lag that never has an effect, and that doubles hold exactly."""


def policy(config: Json) -> tuple[Policy, int | None]:
    """Return the policy of a configuration, and the max event time to declare its substreams with, or None.

    Two policies of the traces exist only for tests. ``real_time_lag`` is a wall-clock lag with a lag that never has an
    effect. ``constant`` is a lull that never begins, with a max event time declared above the constant.
    """
    match config["policy"]:
        case "limiting_lag":
            return LimitingLag(config["lag"]), None
        case "limiting_lag_and_delay":
            if config.get("num_stored_samples", 16) != 16:
                raise ValueError("histories have 16 slots")
            return LimitingLagAndDelay(config["lag"], config["max_delay_ms"]), None
        case "limiting_lag_and_lull":
            return LimitingLagAndLull(config["lag"], config["max_lull_ms"]), None
        case "limiting_timestamp_and_wall_clock_lag":
            return LimitingTimestampAndWallClockLag(config["timestamp_lag"], config["wall_clock_lag"]), None
        case "real_time_lag":
            return LimitingTimestampAndWallClockLag(NEVER, config["lag"]), None
        case "constant":
            return LimitingLagAndLull(NEVER, NEVER), config["value"] + NEVER
        case other:
            raise ValueError(f"no such policy: {other}")
