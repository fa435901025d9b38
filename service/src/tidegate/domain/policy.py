"""Policies: what a substream's watermark is, given the event times seen in it."""

from dataclasses import dataclass

from tidegate.domain.errors import InvalidConfig
from tidegate.domain.numbers import EXACT_DOUBLE, NumberRange


@dataclass(frozen=True, slots=True)
class LimitingLag:
    """Fixed lag: the watermark trails the top by ``lag`` (in the job's unit of time). It never reads the clock.

    An event so far below zero that its watermark would leave the range of numbers has no say.

    :raises InvalidConfig: for a negative lag.
    """

    lag: int

    def __post_init__(self) -> None:
        if self.lag < 0:
            raise InvalidConfig("policy.lag_ms", f"A lag must be 0 or more; it is {self.lag}.")

    def watermark(self, top: int, numbers: NumberRange = EXACT_DOUBLE) -> int | None:
        return numbers.minus(top, self.lag)


Policy = LimitingLag
