"""The batch that a user's function receives, and the result of its commit."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

from tidegate_spark.errors import InvalidUsage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

ROW_CLASSES = ("on_time", "updated", "late", "null_event_time", "future")


Assumption = Literal["written", "missing"]
"""What a user knows of a batch if the table cannot tell whether it has the batch."""

Append = Callable[["Batch", "DataFrame", str, str | None, Assumption | None], bool]
"""A function that appends rows to a table once: the arguments of :meth:`Batch.write_once`, after the batch."""


def table_name(call: str, table: str | os.PathLike[str]) -> str:
    """Return the name or path of a table as text.

    Raises:
        InvalidUsage: If ``table`` is neither. The message names the function ``call``.
    """
    name = os.fspath(table) if isinstance(table, (str, os.PathLike)) else None
    if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= 1000:
        raise InvalidUsage(
            f"{call}() takes the name of a table or a path, of 1 to 1,000 printable characters, not {table!r}."
        )
    return name


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch, as a function with a third parameter receives it.

    Watermarks are in epoch milliseconds, or in the unit of a numeric event time.

    Attributes:
        batch_id: Spark's id of the batch.
        watermark: The pinned watermark, by which rows are classified in every replay of this batch. None if the job had
            no watermark: no row is then late.
        job_watermark: The latest emitted watermark that the client had received when the batch began; None if it had
            received none. For the function that receives windows: the end of the last closed window.
        job: Name of the job.
        query: Name of the query.
        replayed: Whether an earlier attempt began this batch.
        incarnation: Incarnation of the job that the watermarks belong to. It rises when an operator resets the job.
        unfinished_frame: Start of the first frame that was not finished when the batch began; None if not known.
    """

    batch_id: int
    watermark: int | None
    job_watermark: int | None
    job: str
    query: str
    replayed: bool
    incarnation: int = 1
    unfinished_frame: int | None = None
    append: Append | None = field(default=None, repr=False, compare=False)

    def write_once(
        self,
        df: "DataFrame",
        table: str | os.PathLike[str],
        *,
        part: str | None = None,
        assume: Assumption | None = None,
    ) -> bool:
        """Append rows to a table of Delta Lake or Iceberg, unless the table has those of this batch.

        The batch is recorded in the table's own commit, with the claim that the table has all rows on time below
        :attr:`job_watermark`. A replay after a crash finds the record, and appends nothing.

        It does not cover two drivers that run the same query at the same moment on an Iceberg table.

        Args:
            df: Rows of this batch: the same ones in each replay.
            table: Name of the table in a catalog, or path of a Delta table, which is created if it does not exist.
            part: Name of the part, if a function appends to a table several times in a batch. It must be the same in
                each replay.
            assume: What holds if the table cannot tell whether it has the batch, because it has forgotten batches:
                ``written`` or ``missing``. Pass it for that one batch only. Default: raise an error.

        Returns:
            Whether this call appended the rows. False: the table had them.

        Raises:
            InvalidUsage: If the table does not exist or has another format, or the function has appended to it in this
                batch under the same ``part``.
            UnsafeWrite: If it is not known whether the table has the batch, or it has a later one.
        """
        if self.append is None:
            raise InvalidUsage(
                "write_once() works in a function of foreach_batch() or late_output() only: call it there."
            )
        name = table_name("write_once", table)
        if part is not None and (not isinstance(part, str) or not part.isprintable() or not 0 < len(part) <= 100):
            raise InvalidUsage(f"part must be a text of 1 to 100 printable characters; it is {part!r}.")
        if assume not in (None, "written", "missing"):
            raise InvalidUsage(f"assume must be 'written' or 'missing'; it is {assume!r}.")
        return self.append(self, df, name, part, assume)


@dataclass(frozen=True, slots=True)
class Holder:
    """The substream, open batch, missing query or hold that holds the watermark.

    Attributes:
        reason: slow, never_reported, blocked, missing_query, open_batch or hold.
        query: Name of the query; empty for a hold.
        substream: Name of the substream; None if no substream holds the watermark.
        batch_id: Id of the open batch; None if no batch holds the watermark.
        since_ms: Time at which the watermark last moved (epoch milliseconds).
        hold: Id of the hold; None if no hold holds the watermark.
    """

    reason: str
    query: str
    substream: str | None
    batch_id: int | None
    since_ms: int
    hold: str | None = None

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> "Holder | None":
        """Return the holder in an answer of the coordinator; None if nothing holds the watermark."""
        held_by = answer["held_by"]
        if held_by is None:
            return None
        # A newer coordinator may send more members.
        return cls(**{member.name: held_by[member.name] for member in fields(cls) if member.name in held_by})

    def __str__(self) -> str:
        """Return the holder as a phrase for logs."""
        if self.hold is not None:
            return f"hold {self.hold}"
        if self.reason == "missing_query":
            return f"query {self.query} (no event time yet)"
        if self.substream is None:
            return f"batch {self.batch_id} of {self.query}"
        return self.substream if self.reason == "slow" else f"{self.substream} ({self.reason.replace('_', ' ')})"


@dataclass(frozen=True, slots=True)
class Committed:
    """The result of a commit: the batch's rows by class, and the job's watermark.

    Attributes:
        batch: The batch.
        on_time: Number of rows on time.
        updated: Number of rows that changed a closed window.
        late: Number of late rows.
        null_event_time: Number of rows without an event time.
        future: Number of rows with event times too far ahead of the clock.
        watermark: The emitted watermark after the commit. If ``acknowledged`` is False, the last known watermark.
        now_ms: The coordinator's time at the commit (epoch milliseconds); None if ``acknowledged`` is False.
        held_by: The holder of the watermark; None if nothing holds it, or ``acknowledged`` is False.
        seconds: Duration of the batch, in seconds.
        acknowledged: Whether the coordinator acknowledged the commit. If not, the batch is in the backlog.
        of_timestamps: Whether the event times are timestamps. Watermarks are then epoch milliseconds.
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
    acknowledged: bool
    of_timestamps: bool

    @property
    def rows(self) -> int:
        """Number of rows of all classes."""
        return sum(getattr(self, row_class) for row_class in ROW_CLASSES)

    @property
    def watermark_lag_ms(self) -> int | None:
        """Watermark lag in milliseconds, for event times that are timestamps; None if the lag is unknown."""
        return None if self.watermark is None or self.now_ms is None else self.now_ms - self.watermark

    def metrics(self) -> dict[str, int | float | None]:
        """Return the batch's metrics by name. The log records of the commit have the same metrics as attributes."""
        return {
            "tidegate.pinned_watermark": self.batch.watermark,
            "tidegate.watermark": self.watermark,
            "tidegate.watermark_lag_ms": self.watermark_lag_ms,
            **{f"tidegate.{row_class}_rows": getattr(self, row_class) for row_class in ROW_CLASSES},
            "tidegate.batch_seconds": self.seconds,
        }

    def __str__(self) -> str:
        """Return a summary for logs."""
        rows = [f"{self.rows:,} rows"]
        for count, what in (
            (self.updated, "updating"),
            (self.late, "late"),
            (self.null_event_time, "without event time"),
            (self.future, "too far ahead"),
        ):
            if count:
                rows.append(f"{count:,} {what}")
        held = "not held" if self.held_by is None else f"held by {self.held_by}"
        if not self.acknowledged:
            return f"{', '.join(rows)}; not reported yet: the coordinator does not answer"
        return f"{', '.join(rows)}; watermark {self._watermark()}, {held}"

    def _watermark(self) -> str:
        if self.watermark is None:
            return "none yet"
        if not self.of_timestamps:
            return str(self.watermark)
        moment, lag_s = utc_text(self.watermark), (self.watermark_lag_ms or 0) // 1000
        if moment == str(self.watermark):
            return moment
        where = "behind" if lag_s >= 0 else "ahead of"
        return f"{moment} ({timedelta(seconds=abs(lag_s))} {where} the clock)"


def utc_text(time_ms: int) -> str:
    """Return a time in epoch milliseconds as text; the number itself if Python cannot represent the time."""
    try:
        return f"{EPOCH + timedelta(milliseconds=time_ms):%Y-%m-%d %H:%M:%S} UTC"
    except OverflowError:
        return str(time_ms)
