"""What a user's function gets to know of its batch, before and after it."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self


class Batch(int):
    """Spark's batch id, which also knows how its rows were judged.

    It is an ``int``, so a function written for ``foreachBatch`` takes it as it always did.

    ``pin`` (epoch milliseconds, or the unit of a numeric event time): rows with an event time below it are late, in
    every replay of this batch; None: none is. ``watermark``: what the whole job had emitted when this batch began.
    ``replayed``: the batch was begun before, by a run that did not finish it.
    """

    pin: int | None
    watermark: int | None
    job: str
    query: str
    replayed: bool

    def __new__(
        cls, batch_id: int, *, pin: int | None, watermark: int | None, job: str, query: str, replayed: bool
    ) -> Self:
        self = super().__new__(cls, batch_id)
        self.pin, self.watermark, self.job, self.query, self.replayed = pin, watermark, job, query, replayed
        return self


@dataclass(frozen=True, slots=True)
class Holder:
    """Who keeps the watermark where it is.

    ``reason``: slow, never_reported, blocked, missing_query, open_batch or hold.
    """

    reason: str
    query: str
    substream: str | None
    batch_id: int | None
    since_ms: int
    hold: str | None = None

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> "Holder | None":
        """The holder in an answer of the coordinator."""
        holder = answer["holder"]
        if holder is None:
            return None
        # A coordinator that is newer may say more.
        return cls(**{member.name: holder[member.name] for member in fields(cls) if member.name in holder})

    def __str__(self) -> str:
        if self.hold is not None:
            return f"hold {self.hold}"
        if self.reason == "missing_query":
            return f"query {self.query} (not there yet)"
        if self.substream is None:
            return f"batch {self.batch_id} of {self.query}"
        return self.substream if self.reason == "slow" else f"{self.substream} ({self.reason.replace('_', ' ')})"


@dataclass(frozen=True, slots=True)
class Committed:
    """A batch after its commit: its rows by what became of them, and the watermark that the job has now."""

    batch: Batch
    on_time: int
    late: int
    null_event_time: int
    watermark: int | None
    holder: Holder | None
    seconds: float

    @property
    def rows(self) -> int:
        return self.on_time + self.late + self.null_event_time
