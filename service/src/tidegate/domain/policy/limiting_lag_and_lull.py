"""``limiting_lag_and_lull``: a fixed lag, and a watermark that advances with the clock after a lull."""

from dataclasses import dataclass
from typing import ClassVar

from tidegate.domain.numbers import EXACT_DOUBLE, NumberRange
from tidegate.domain.parameters import parameter
from tidegate.domain.policy.base import PolicyState, ProcessingTime
from tidegate.domain.policy.limiting_lag import LimitingLag


@dataclass(frozen=True)
class LimitingLagAndLull(LimitingLag):
    """A fixed lag; after ``max_lull_ms`` without events the watermark advances with the clock.

    The first lull of a substream starts with its first evaluation. A lull gives no watermark to a substream without
    events.
    """

    max_lull_ms: int = parameter(
        "Processing time without events after which the watermark advances with the clock.",
        example=60_000,
        effect="its policy advances",
    )
    type: ClassVar[str] = "limiting_lag_and_lull"
    follows_clock: ClassVar[bool] = True

    def start(self, numbers: NumberRange = EXACT_DOUBLE) -> PolicyState:
        """Return the state for a substream without events."""
        return LullState(numbers, self)


class LullState(PolicyState):
    """The state of ``limiting_lag_and_lull``."""

    def __init__(self, numbers: NumberRange, policy: LimitingLagAndLull) -> None:
        super().__init__(numbers, policy)
        self.deadline_ms: int | None = None

    def observe(self, event_time: int, at: ProcessingTime) -> None:
        """Apply an event time, and restart the lull."""
        self.deadline_ms = at.observed_ms + self.policy.max_lull_ms
        super().observe(event_time, at)

    def poll(self, at: ProcessingTime) -> None:
        """Advance the watermark by the time since the end of the lull or the last poll, whichever is later."""
        if self.deadline_ms is None:
            self.deadline_ms = at.observed_ms + self.policy.max_lull_ms
        if at.observed_ms > self.deadline_ms:
            if self.watermark is not None:
                self.watermark = self.numbers.plus(self.watermark, at.observed_ms - self.deadline_ms)
            self.deadline_ms = at.observed_ms

    def next_change_ms(self, reached: int | None, at: ProcessingTime) -> int | None:
        """Return the observed time at which the watermark passes ``reached``; None before the first watermark."""
        if self.watermark is None or self.deadline_ms is None or reached is None:
            return None
        return max(self.deadline_ms + reached - self.watermark, at.observed_ms + 1)
