"""``reported``: clients send the watermark of a substream themselves."""

from dataclasses import dataclass
from typing import ClassVar

from tidegate.domain.numbers import EXACT_DOUBLE, NumberRange
from tidegate.domain.policy.base import Policy, PolicyState, ProcessingTime


@dataclass(frozen=True)
class Reported(Policy):
    """The client sends the watermark; event times only move the max event time."""

    type: ClassVar[str] = "reported"
    follows_clock: ClassVar[bool] = False
    accepts_watermarks: ClassVar[bool] = True

    def start(self, numbers: NumberRange = EXACT_DOUBLE) -> PolicyState:
        return ReportedState(numbers, self)


class ReportedState(PolicyState):
    def observe(self, event_time: int, at: ProcessingTime) -> None:
        pass

    def report(self, watermark: int) -> None:
        self.watermark = self.lagged = watermark
