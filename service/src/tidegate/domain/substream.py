"""One substream of one query: what was seen of it, and its watermark."""

from dataclasses import dataclass

from tidegate.domain.numbers import above, highest
from tidegate.domain.policy import Moment, Policy, PolicyState, ReportedState, lag_of
from tidegate.domain.records import SubstreamState

SubstreamKey = tuple[str, str]
"""(query, substream name); the query is "" where reports come without batches."""

PLACEHOLDER = ""
"""The name under which an expected query holds the watermark until its substreams are known; no substream has it."""


def member(key: SubstreamKey) -> str:
    """A substream's name within its job, as records and tables order it. Ids hold no slash."""
    return "/".join(key)


@dataclass(slots=True)
class Substream:
    """State of a substream. Its watermark never goes back, whatever is observed and whichever policy follows.

    A substream that is declared but unseen has neither top nor watermark, and so holds its job back.
    ``last_event_ms`` is in its query's observed time; ``since_ms``, in processing time, is when it was first known, or
    last fell idle, awoke, or ended. ``told``: it is idle for another reason than its silence: it was
    declared so, or its query is dead.
    """

    policy: Policy
    state_of_policy: PolicyState
    last_event_ms: int
    max_event_time: int | None = None
    watermark: int | None = None
    done: bool = False
    idle: bool = False
    told: bool = False
    since_ms: int = 0

    def observe(self, event_time: int, at: Moment) -> None:
        self.max_event_time = highest(self.max_event_time, event_time)
        self.state_of_policy.event(event_time, at)
        self._follow()

    def report(self, watermark: int) -> bool:
        """Takes a ready-made watermark, if its policy does and it is news; returns whether it was."""
        state = self.state_of_policy
        if not isinstance(state, ReportedState) or not above(watermark, self.reading):
            return False
        state.report(watermark)
        self._follow()
        return True

    def _follow(self) -> None:
        """What does not follow the clock needs no look to reach where its policy is."""
        if not self.policy.follows_clock:
            self.watermark = self.reading

    def wake(self, observed_ms: int) -> bool:
        """Something came of it; returns whether it had been idle."""
        was_idle, self.idle, self.told = self.idle, False, False
        self.last_event_ms = observed_ms
        return was_idle

    def look(self, at: Moment, cap: int | None) -> None:
        """Moves its watermark to where its policy is; one that follows the clock, no further than ``cap``."""
        self.state_of_policy.poll(at)
        reached = self.state_of_policy.watermark
        if cap is not None and reached is not None and self.policy.follows_clock:
            reached = min(reached, cap)
        self.watermark = highest(self.watermark, reached)

    def change(self, policy: Policy, at: Moment) -> None:
        """Puts it under another policy; one that is no other keeps its state."""
        if policy != self.policy:
            self.state_of_policy = policy.resume(self.state_of_policy, self.max_event_time, at)
            self.policy = policy
        if self.live:
            if not self.policy.follows_clock:
                self.state_of_policy.poll(at)
            self._follow()

    @property
    def lag(self) -> int | None:
        """How far behind its top its policy keeps it, limits aside."""
        return lag_of(self.policy, self.state_of_policy)

    @property
    def reading(self) -> int | None:
        """How far its policy has come, cap or no cap: where its watermark will be with the next look."""
        return highest(self.watermark, self.state_of_policy.watermark)

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
