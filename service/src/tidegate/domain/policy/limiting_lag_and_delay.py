"""``limiting_lag_and_delay``: a fixed lag, and a maximum time until the watermark reaches the max event time."""

from dataclasses import dataclass
from typing import ClassVar

from tidegate.domain.history import History
from tidegate.domain.numbers import EXACT_DOUBLE, NumberRange, above, highest
from tidegate.domain.parameters import parameter
from tidegate.domain.policy.base import PolicyState, ProcessingTime
from tidegate.domain.policy.limiting_lag import LimitingLag


@dataclass(frozen=True)
class LimitingLagAndDelay(LimitingLag):
    """A fixed lag and a maximum delay. The watermark is at least the max event time of ``max_delay_ms`` ago."""

    max_delay_ms: int = parameter(
        "Processing time after which the watermark reaches an observed max event time, regardless of the lag.",
        minimum=1,
        example=600_000,
        effect="its policy advances",
    )
    type: ClassVar[str] = "limiting_lag_and_delay"
    follows_clock: ClassVar[bool] = True

    def start(self, numbers: NumberRange = EXACT_DOUBLE) -> "DelayState":
        """Return the state for a substream without events."""
        return DelayState(numbers, self)

    def resume(self, before: PolicyState, max_event_time: int | None, at: ProcessingTime) -> PolicyState:
        """Return the state, with the history of the previous state if ``max_delay_ms`` is the same."""
        state = self.start(before.numbers)
        if isinstance(before, DelayState) and before.history.length_ms == self.max_delay_ms:
            state.history = before.history
        if max_event_time is not None:
            state.observe(max_event_time, at)
        return state


class DelayState(PolicyState):
    """The state of ``limiting_lag_and_delay``."""

    def __init__(self, numbers: NumberRange, policy: LimitingLagAndDelay) -> None:
        super().__init__(numbers, policy)
        self.max_event_time: int | None = None
        self.history = History(policy.max_delay_ms)

    def observe(self, event_time: int, at: ProcessingTime) -> None:
        """Apply an event time."""
        self.max_event_time = highest(self.max_event_time, self.numbers.minus(event_time, 0))
        super().observe(event_time, at)
        self.poll(at)

    def poll(self, at: ProcessingTime) -> None:
        """Raise the watermark to the max event time of ``max_delay_ms`` ago."""
        self.watermark = highest(self.watermark, self.history.sample(at.observed_ms, self.max_event_time))

    def next_change_ms(self, reached: int | None, at: ProcessingTime) -> int | None:
        """Return the observed time from which the history exceeds ``reached``; None if only new data can raise it.

        Before the first sample, return the current observed time.
        """
        if self.history.boundary is None:
            return at.observed_ms
        return self.history.next_change_ms(lambda max_event_time: above(max_event_time, reached))
