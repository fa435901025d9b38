"""``limiting_lag``: a fixed lag behind the max event time."""

from dataclasses import dataclass
from typing import ClassVar

from tidegate.domain.numbers import EXACT_DOUBLE, NumberRange
from tidegate.domain.parameters import parameter
from tidegate.domain.policy.base import Policy, PolicyState, ProcessingTime

LAG = "Distance of the watermark behind the max event time, in milliseconds."


@dataclass(frozen=True)
class LimitingLag(Policy):
    """A fixed lag behind the max event time of the substream.

    An event time whose watermark would be below the range of numbers has no effect.
    """

    lag_ms: int = parameter(LAG, example=1_800_000)
    type: ClassVar[str] = "limiting_lag"
    follows_clock: ClassVar[bool] = False

    @property
    def initial_lag(self) -> int:
        """The parameter ``lag_ms``."""
        return self.lag_ms

    def start(self, numbers: NumberRange = EXACT_DOUBLE) -> PolicyState:
        """Return the state for a substream without events."""
        return LagState(numbers, self)


class LagState(PolicyState):
    """The state of ``limiting_lag``."""

    def observe(self, event_time: int, at: ProcessingTime) -> None:
        """Apply an event time."""
        self._apply_lag(event_time, self.policy.lag_ms)
