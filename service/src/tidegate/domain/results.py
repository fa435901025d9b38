"""What every command returns: the watermark of the job, and what holds it."""

from dataclasses import dataclass
from typing import Literal

from tidegate.domain.values import described

HoldReason = Literal["slow", "never_reported", "blocked", "missing_query", "open_batch", "hold"]


@dataclass(frozen=True, slots=True)
class Holder:
    """The substream, open batch, missing query or hold that keeps the watermark at its value."""

    reason: HoldReason = described(
        "`slow`: the active substream with the lowest watermark. `never_reported`: a declared substream without "
        "events. `blocked`: a substream that is silent for longer than the idle timeout, while its query has not "
        "confirmed that it has no data. `missing_query`: an expected query without substreams. `open_batch`: an open "
        "batch. `hold`: a hold by an operator.",
        example="slow",
    )
    query: str = described("Query of the substream or batch, or the missing query.", example="departures")
    substream: str | None = described("Substream that holds the watermark.", example="HNL")
    batch_id: int | None = described("Open batch that holds the watermark.", example=None)
    hold: str | None = described("Name of the hold.", example=None)
    since_ms: int = described(
        "Processing time of the last movement of the watermark, in Unix milliseconds.", example=1357554600000
    )
    last_event_ms: int | None = described(
        "Processing time at which the last report of the substream took effect.", example=1357554612000
    )
    begun_ms: int | None = described("Processing time at which the open batch began.", example=None)


@dataclass(frozen=True, slots=True)
class JobWatermark:
    """The watermark of a job after a command.

    ``watermark`` is the emitted watermark W, ``coalesced_watermark`` is C. ``written_watermark`` is at most W: the
    queries of the job have written their results below it. ``written_held_by`` is the query that keeps it below W; None
    if it follows W. ``now_ms`` is the processing time of the command. ``state_epoch`` changes when the job starts with
    new state: after data loss, a deletion or a reset.
    """

    incarnation: int
    state_epoch: str
    now_ms: int
    watermark: int | None
    coalesced_watermark: int | None
    written_watermark: int | None
    written_held_by: str | None
    complete: bool
    held_by: Holder | None


@dataclass(frozen=True, slots=True)
class Effect:
    """The result of a command that may be repeated. ``applied`` is true if this call had an effect."""

    state: JobWatermark
    applied: bool


@dataclass(frozen=True, slots=True)
class Committed(Effect):
    """The result of the command ``commit``.

    ``unfinished_frame`` is the start of the first frame that is not finished; None if the job has no frame yet.
    """

    unfinished_frame: int | None = None


@dataclass(frozen=True, slots=True)
class Begun:
    """The result of the command ``begin``.

    ``replayed`` is true if the batch had already begun and keeps its ``pinned_watermark``. ``joined`` is true if an
    unexpected query joined a job that has a watermark; its rows below the watermark are late. Event times after
    ``latest_event_time`` are set aside. ``previous_batch_id`` and ``previous_open`` describe the latest batch of this
    checkpoint before this call; if this call repeats the begin of an open batch, before the first begin. A client
    compares both with its own commits to detect that the store has lost its latest writes. ``unfinished_frame`` is the
    start of the first frame that is not finished; None if the job has no frame yet.
    """

    state: JobWatermark
    pinned_watermark: int | None
    replayed: bool
    joined: bool = False
    latest_event_time: int | None = None
    previous_batch_id: int | None = None
    previous_open: bool = False
    revision: int = 1
    unfinished_frame: int | None = None
