"""The heartbeats of a query: evidence that the query is caught up.

The evidence is Spark's idle event: a trigger found no new data. The heartbeat reports the time of this event, because a
query that waits for its next trigger observes nothing.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A heartbeat to send.

    Attributes:
        age_s: Age of the observation, in seconds.
        after_batch: The last batch that the query had finished at the observation; None if it had finished none.
    """

    age_s: float
    after_batch: int | None


class HeartbeatDecision:
    """The decision of a run whether to send a heartbeat after a trigger without new data."""

    def __init__(self) -> None:
        self._known = False
        self._finished: int | None = None

    @property
    def needs_last_batch(self) -> bool:
        """Whether the last finished batch is unknown."""
        return not self._known

    def finished(self, batch_id: int | None) -> None:
        """Record the last batch that Spark has finished; None if it has finished none."""
        self._known, self._finished = True, batch_id

    def idle(self, at_s: float, now_s: float) -> Heartbeat | None:
        """Return the heartbeat for a trigger that found no new data at ``at_s`` (Unix time).

        Return None if the last batch is unknown: earlier runs may have read input that is not reported.
        """
        return Heartbeat(max(0.0, now_s - at_s), self._finished) if self._known else None
