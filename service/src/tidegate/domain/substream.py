"""One substream of one query: what was seen of it, and its watermark."""

from dataclasses import dataclass

from tidegate.domain.numbers import highest
from tidegate.domain.policy import Policy
from tidegate.domain.records import SubstreamState

SubstreamKey = tuple[str, str]
"""(query, substream name); the query is "" where reports come without batches."""


@dataclass(slots=True)
class Substream:
    """State of a substream. Its watermark never goes back, whatever is observed and whichever policy follows.

    A substream that is declared but unseen has neither top nor watermark, and so holds its job back.
    ``last_event_ms`` is in its query's observed time.
    """

    last_event_ms: int
    top: int | None = None
    watermark: int | None = None
    done: bool = False
    idle: bool = False

    def observe(self, event_time: int, policy: Policy, observed_ms: int) -> None:
        """Takes in the highest event time of a report; wakes the substream. Has no effect on one that is done."""
        if self.done:
            return
        self.top = highest(self.top, event_time)
        self.watermark = highest(self.watermark, policy.watermark(event_time))
        self.last_event_ms = observed_ms
        self.idle = False

    @property
    def live(self) -> bool:
        """Whether it has a say in the merged watermark."""
        return not (self.done or self.idle)

    def state(self, observed_ms: int, idle_timeout_ms: int | None) -> SubstreamState:
        """``blocked``: silent for longer than the timeout, but nobody can say that there was nothing to take in."""
        if self.done:
            return "done"
        if self.idle:
            return "idle"
        if idle_timeout_ms is not None and observed_ms - self.last_event_ms >= idle_timeout_ms:
            return "blocked"
        return "active"
