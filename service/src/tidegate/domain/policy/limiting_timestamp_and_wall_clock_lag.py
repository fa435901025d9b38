"""``limiting_timestamp_and_wall_clock_lag``: fixed lag, and never further behind the clock than a second lag."""

from dataclasses import dataclass
from typing import ClassVar

from tidegate.domain.declared import parameter
from tidegate.domain.numbers import EXACT_DOUBLE, NumberRange, highest
from tidegate.domain.policy.base import Policy, PolicyState, ProcessingTime
from tidegate.domain.policy.limiting_lag import LAG


@dataclass(frozen=True)
class LimitingTimestampAndWallClockLag(Policy):
    """Fixed lag, and never further behind the clock than ``wall_clock_lag_ms``.

    Event times must be epoch milliseconds. A substream without events has a watermark, too.
    """

    timestamp_lag_ms: int = parameter(LAG, example=1_800_000)
    wall_clock_lag_ms: int = parameter(
        "The watermark is never further behind the clock than this, in milliseconds.",
        example=3_600_000,
        effect="its policy moves on",
    )
    type: ClassVar[str] = "limiting_timestamp_and_wall_clock_lag"
    limit: ClassVar[str | None] = "wall_clock_lag_ms"

    @property
    def initial_lag(self) -> int:
        return self.timestamp_lag_ms

    def start(self, numbers: NumberRange = EXACT_DOUBLE) -> PolicyState:
        return WallClockState(numbers, self)


class WallClockState(PolicyState):
    def observe(self, event_time: int, at: ProcessingTime) -> None:
        self.poll(at)
        self._apply_lag(event_time, self.policy.timestamp_lag_ms)

    def poll(self, at: ProcessingTime) -> None:
        self.watermark = highest(self.watermark, self.numbers.minus(at.now_ms, self.policy.wall_clock_lag_ms))

    def next_change_ms(self, reached: int | None, at: ProcessingTime) -> int | None:
        if reached is None:
            return at.observed_ms
        outages_ms = at.now_ms - at.observed_ms
        policy: LimitingTimestampAndWallClockLag = self.policy
        return max(reached + policy.wall_clock_lag_ms - outages_ms, at.observed_ms + 1)
