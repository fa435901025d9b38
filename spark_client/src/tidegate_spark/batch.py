"""What a user's function gets to know of its batch, before and after it."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Any, Self


class Batch(int):
    """Spark's batch id, which also knows how its rows were judged.

    It is an ``int``, so a function written for ``foreachBatch`` takes it as it always did.

    ``pinned_watermark`` (epoch milliseconds, or the unit of a numeric event time): rows with an event time below it
    are late, in
    every replay of this batch; None: none is. ``watermark``: what the whole job had emitted when this batch began, as
    far as this query has heard; for windows, what they are closed by. ``replayed``: the batch was begun before, by a
    run that did not finish it.
    """

    watermark: int | None
    job_watermark: int | None
    job: str
    query: str
    replayed: bool

    # The defaults are for copies and pickles (a batch in the closure of a UDF), which bring the attributes after.
    def __new__(
        cls,
        batch_id: int,
        *,
        watermark: int | None = None,
        job_watermark: int | None = None,
        job: str = "",
        query: str = "",
        replayed: bool = False,
    ) -> Self:
        self = super().__new__(cls, batch_id)
        self.watermark, self.job_watermark = watermark, job_watermark
        self.job, self.query, self.replayed = job, query, replayed
        return self

    def closing(self, watermark: int) -> "Batch":
        """The batch as the function for windows gets it, which are closed by this watermark."""
        again = copy.copy(self)
        again.job_watermark = watermark
        return again


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
        held_by = answer["held_by"]
        if held_by is None:
            return None
        # A coordinator that is newer may say more.
        return cls(**{member.name: held_by[member.name] for member in fields(cls) if member.name in held_by})

    def __str__(self) -> str:
        if self.hold is not None:
            return f"hold {self.hold}"
        if self.reason == "missing_query":
            return f"query {self.query} (no event time seen of it)"
        if self.substream is None:
            return f"batch {self.batch_id} of {self.query}"
        return self.substream if self.reason == "slow" else f"{self.substream} ({self.reason.replace('_', ' ')})"


@dataclass(frozen=True, slots=True)
class Committed:
    """A batch after its commit: its rows by what became of them, and the watermark that the job has now.

    ``told`` is False where the query went on without its coordinator: the batch is told later, and ``watermark`` is
    the last that was heard of. ``now_ms``: the coordinator's time at the commit (epoch milliseconds). ``seconds``: how
    long the batch took. ``of_timestamps``: the event times are timestamps, so that watermarks are epoch milliseconds;
    those of a numeric column may be, too.
    """

    batch: Batch
    on_time: int
    updated: int
    late: int
    null_event_time: int
    future: int
    watermark: int | None
    now_ms: int | None
    held_by: Holder | None
    seconds: float
    told: bool
    of_timestamps: bool

    @property
    def rows(self) -> int:
        return self.on_time + self.updated + self.late + self.null_event_time + self.future

    @property
    def watermark_lag_ms(self) -> int | None:
        """How far the watermark is behind the clock; None where either is not known. For epoch milliseconds only."""
        return None if self.watermark is None or self.now_ms is None else self.now_ms - self.watermark

    def metrics(self) -> dict[str, int | float | None]:
        """The same as named numbers, for a metrics system, and as attributes of the log's records."""
        return {
            "tidegate.pinned_watermark": self.batch.watermark,
            "tidegate.watermark": self.watermark,
            "tidegate.watermark_lag_ms": self.watermark_lag_ms,
            "tidegate.on_time_rows": self.on_time,
            "tidegate.updated_rows": self.updated,
            "tidegate.late_rows": self.late,
            "tidegate.null_event_time_rows": self.null_event_time,
            "tidegate.future_rows": self.future,
            "tidegate.batch_seconds": self.seconds,
        }

    def __str__(self) -> str:
        rows = [f"{self.rows:,} rows"]
        for count, what in (
            (self.updated, "updating"),
            (self.late, "late"),
            (self.null_event_time, "without event time"),
            (self.future, "too far ahead"),
        ):
            if count:
                rows.append(f"{count:,} {what}")
        if not self.told:
            return f"{', '.join(rows)}; the coordinator is told later"
        return f"{', '.join(rows)}; watermark {self._watermark()}, held by {self.held_by or 'nobody'}"

    def _watermark(self) -> str:
        if self.watermark is None:
            return "none yet"
        if not self.of_timestamps:
            return str(self.watermark)
        try:
            moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=self.watermark)
        except OverflowError:
            return str(self.watermark)
        lag_s = (self.watermark_lag_ms or 0) // 1000
        where = "behind" if lag_s >= 0 else "ahead of"
        return f"{moment:%Y-%m-%d %H:%M:%S} UTC ({timedelta(seconds=abs(lag_s))} {where} the clock)"
