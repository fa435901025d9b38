"""The base classes of policies: the rule with its parameters, and its state for one substream."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from tidegate.domain.numbers import EXACT_DOUBLE, NumberRange, highest
from tidegate.domain.parameters import check_declared, effects
from tidegate.domain.sketch import Sketch


@dataclass(frozen=True, slots=True)
class ProcessingTime:
    """A point in processing time, by the clock and in observed time. Observed time excludes outages."""

    now_ms: int
    observed_ms: int


class Policy:
    """The rule that derives a substream's watermark from its event times.

    ``type`` is the name of the policy in a configuration. If ``follows_clock`` is true, the watermark may advance with
    the clock, and the evaluation of a report caps it. If ``accepts_watermarks`` is true, clients may send watermarks.
    """

    type: ClassVar[str]
    follows_clock: ClassVar[bool] = True
    accepts_watermarks: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Validate the parameters."""
        check_declared(self, "policy.")

    @cached_property
    def limit(self) -> str | None:
        """The name of the parameter that overrides the lag; None if the policy has no such parameter."""
        return next(iter(effects(self)), None)

    @property
    def initial_lag(self) -> int | None:
        """The lag of a substream without known delays; None if the policy has no lag."""
        return None

    def start(self, numbers: NumberRange = EXACT_DOUBLE) -> "PolicyState":
        """Return the state for a substream without events."""
        return PolicyState(numbers, self)

    def resume(self, before: "PolicyState", max_event_time: int | None, at: ProcessingTime) -> "PolicyState":
        """Return the state of this policy for a substream that had another policy or other parameters."""
        state = self.start(before.numbers)
        if max_event_time is not None:
            state.observe(max_event_time, at)
        return state


class PolicyState:
    """The state of a policy for one substream: the watermark follows the max event time at the lag in force.

    ``watermark`` never goes back. A second poll at the same time changes nothing. ``lagged`` is the watermark by the
    lag alone: max event time - lag.
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
        """Apply an event time. It has no effect if the policy has no lag, or if its watermark is below the range."""
        lag = self.lag
        self.lagged = highest(self.lagged, None if lag is None else self.numbers.minus(event_time, lag))
        self.watermark = highest(self.watermark, self.lagged)

    def poll(self, at: ProcessingTime) -> None:
        """Apply the time that has passed. An evaluation polls only substreams that count towards the minimum."""

    def report(self, watermark: int) -> None:
        """Apply a watermark from a client.

        The caller checks that the policy accepts watermarks and that this watermark is higher than the last one.
        """
        raise NotImplementedError

    def learn(self, rows: Mapping[int, int], own: Sketch, pool: Sketch, steps: int) -> bool:
        """Apply new delays; return whether the learned lag was discarded. See ``target_completeness``."""
        return False

    def next_change_ms(self, reached: int | None, at: ProcessingTime) -> int | None:
        """Return the observed time from which a poll may raise the watermark above ``reached``.

        Returns:
            The next millisecond if the watermark already advances with the clock; None if only new data can raise it.
        """
        return None
