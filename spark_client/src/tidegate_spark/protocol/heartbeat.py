"""The decision which heartbeats a query sends: evidence that it is caught up.

The evidence is Spark's idle event: a trigger found no new data at this time. Only this time is reported, because a
query that waits for its next trigger observes nothing.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A heartbeat to send.

    Attributes:
        age_s: Age of the observation, in seconds.
        after_batch: The last batch that the query had finished by then; None if there was none.
    """

    age_s: float
    after_batch: int | None


class HeartbeatDecision:
    """The heartbeats that follow from the events of one run."""

    def __init__(self) -> None:
        self._known = False
        self._finished: int | None = None

    @property
    def needs_last_batch(self) -> bool:
        """Whether the last finished batch is unknown."""
        return not self._known

    def finished(self, batch_id: int | None) -> None:
        """Record the last batch that Spark has finished; None if there is none."""
        self._known, self._finished = True, batch_id

    def idle(self, at_s: float, now_s: float) -> Heartbeat | None:
        """Return the heartbeat for a trigger that found no new data at ``at_s`` (Unix time).

        Return None if the last batch is unknown: earlier runs may have read input that is not reported.
        """
        return Heartbeat(max(0.0, now_s - at_s), self._finished) if self._known else None
