"""``reported``: clients send the watermark of a substream."""

from dataclasses import dataclass
from typing import ClassVar

from tidegate.domain.numbers import EXACT_DOUBLE, NumberRange
from tidegate.domain.policy.base import Policy, PolicyState


@dataclass(frozen=True)
class Reported(Policy):
    """The watermark that the client sends. Event times move only the max event time."""

    type: ClassVar[str] = "reported"
    follows_clock: ClassVar[bool] = False
    accepts_watermarks: ClassVar[bool] = True

    def start(self, numbers: NumberRange = EXACT_DOUBLE) -> PolicyState:
        """Return the state for a substream without events."""
        return ReportedState(numbers, self)


class ReportedState(PolicyState):
    """The state of ``reported``."""

    def report(self, watermark: int) -> None:
        """Apply a watermark."""
        self.watermark = self.lagged = watermark
