"""The base classes of policies: the rule with its parameters, and its state for one substream."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from tidegate.domain.declared import check_declared
from tidegate.domain.numbers import EXACT_DOUBLE, NumberRange, highest
from tidegate.domain.sketch import Sketch


@dataclass(frozen=True, slots=True)
class ProcessingTime:
    """A moment of processing time: by the clock, and in observed time, which excludes outages."""

    now_ms: int
    observed_ms: int


class Policy:
    """The rule that turns the event times of a substream into its watermark.

    ``type`` is its name in a configuration. ``follows_clock``: its watermark moves with time, so that an evaluation
    caps it for a report. ``limit`` names the parameter that overrides the lag; None without one.
    ``accepts_watermarks``: clients send the watermark itself.
    """

    type: ClassVar[str]
    follows_clock: ClassVar[bool] = True
    limit: ClassVar[str | None] = None
    accepts_watermarks: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Validate the parameters."""
        check_declared(self, "policy.")

    @property
    def initial_lag(self) -> int | None:
        """The lag of a substream without known delays; None if the policy has no lag."""
        return None

    def start(self, numbers: NumberRange = EXACT_DOUBLE) -> "PolicyState":
        """Return the state for a substream without events."""
        raise NotImplementedError

    def resume(self, before: "PolicyState", max_event_time: int | None, at: ProcessingTime) -> "PolicyState":
        """Return the state of this policy for a substream that had another policy or other parameters."""
        state = self.start(before.numbers)
        if max_event_time is not None:
            state.observe(max_event_time, at)
        return state


class PolicyState:
    """The state of a policy for one substream.

    ``watermark`` never goes back; a second poll at the same moment changes nothing. ``lagged`` is max event time - lag.
    """

    def __init__(self, numbers: NumberRange, policy: Policy) -> None:
        self.numbers = numbers
        self.policy: Any = policy
        self.watermark: int | None = None
        self.lagged: int | None = None

    @property
    def lag(self) -> int | None:
        """The lag in force; None if the policy has no lag."""
        lag: int | None = self.policy.initial_lag
        return lag

    def observe(self, event_time: int, at: ProcessingTime) -> None:
        """Apply an event time."""
        raise NotImplementedError

    def poll(self, at: ProcessingTime) -> None:
        """Apply the time that has passed, for a substream that counts."""

    def report(self, watermark: int) -> None:
        """Apply a watermark that a client sent; the policy accepts watermarks and it is ahead of the last one."""
        raise NotImplementedError

    def learn(self, rows: Mapping[int, int], own: Sketch, pool: Sketch, steps: int) -> bool:
        """Apply new delays; return whether the lag learned so far was discarded. See ``target_completeness``."""
        return False

    def next_change_ms(self, reached: int | None, at: ProcessingTime) -> int | None:
        """Return when, in observed time, a poll may give more than ``reached``; None if time alone never does.

        A watermark that moves with the clock does so from the next millisecond on.
        """
        return None

    def _apply_lag(self, time: int, lag: int) -> None:
        self.lagged = highest(self.lagged, self.numbers.minus(time, lag))
        self.watermark = highest(self.watermark, self.lagged)
