"""``limiting_timestamp_and_wall_clock_lag``: a fixed lag, and a limit on the lag behind the clock."""

from dataclasses import dataclass
from typing import ClassVar

from tidegate.domain.numbers import EXACT_DOUBLE, NumberRange, highest
from tidegate.domain.parameters import parameter
from tidegate.domain.policy.base import Policy, PolicyState, ProcessingTime


@dataclass(frozen=True)
class LimitingTimestampAndWallClockLag(Policy):
    """A lag behind the max event time and a lag behind the clock. The higher of the two watermarks applies.

    Event times must be epoch milliseconds. The clock also gives a watermark to a substream without events.
    """

    timestamp_lag_ms: int = parameter("Distance behind the max event time, in milliseconds.", example=1_800_000)
    wall_clock_lag_ms: int = parameter(
        "Maximum distance behind the clock, in milliseconds.",
        example=3_600_000,
        effect="its policy advances",
    )
    type: ClassVar[str] = "limiting_timestamp_and_wall_clock_lag"

    @property
    def initial_lag(self) -> int:
        """The parameter ``timestamp_lag_ms``."""
        return self.timestamp_lag_ms

    def start(self, numbers: NumberRange = EXACT_DOUBLE) -> PolicyState:
        """Return the state for a substream without events."""
        return WallClockState(numbers, self)


class WallClockState(PolicyState):
    """The state of ``limiting_timestamp_and_wall_clock_lag``."""

    def observe(self, event_time: int, at: ProcessingTime) -> None:
        """Poll, then apply an event time."""
        self.poll(at)
        super().observe(event_time, at)

    def poll(self, at: ProcessingTime) -> None:
        """Raise the watermark to ``wall_clock_lag_ms`` behind the clock."""
        self.watermark = highest(self.watermark, self.numbers.minus(at.now_ms, self.policy.wall_clock_lag_ms))

    def next_change_ms(self, reached: int | None, at: ProcessingTime) -> int | None:
        """Return the observed time at which the clock minus ``wall_clock_lag_ms`` passes ``reached``."""
        if reached is None:
            return at.observed_ms
        outages_ms = at.now_ms - at.observed_ms
        policy: LimitingTimestampAndWallClockLag = self.policy
        return max(reached + policy.wall_clock_lag_ms - outages_ms, at.observed_ms + 1)
