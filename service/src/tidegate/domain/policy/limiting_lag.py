"""``limiting_lag``: a fixed lag behind the max event time."""

from dataclasses import dataclass
from typing import ClassVar

from tidegate.domain.parameters import parameter
from tidegate.domain.policy.base import Policy


@dataclass(frozen=True)
class LimitingLag(Policy):
    """A fixed lag behind the max event time of the substream.

    An event time whose watermark would be below the range of numbers has no effect.
    """

    lag_ms: int = parameter("Distance of the watermark behind the max event time, in milliseconds.", example=1_800_000)
    type: ClassVar[str] = "limiting_lag"
    follows_clock: ClassVar[bool] = False

    @property
    def initial_lag(self) -> int:
        """The parameter ``lag_ms``."""
        return self.lag_ms
