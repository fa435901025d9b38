"""What every command returns: the watermark of the job, and what holds it."""

from dataclasses import dataclass
from typing import Literal

HoldReason = Literal["slow", "never_reported", "blocked", "missing_query", "open_batch", "hold"]


@dataclass(frozen=True, slots=True)
class Holder:
    """The substream, open batch, missing query or hold that keeps the emitted watermark at its value.

    By ``reason``, the holder is:

    - ``open_batch``: the batch ``batch_id`` of ``query``,
    - ``missing_query``: the expected query ``query``, whose substreams are not known yet,
    - ``hold``: the hold with the name ``hold``,
    - any other reason: the slowest active substream; ``query`` is "" for reports without batches.

    ``since_ms`` is the processing time at which the watermark last moved. ``last_event_ms`` is the processing time of
    the substream's last report (see :class:`~tidegate.domain.views.SubstreamRow`). ``begun_ms`` is the processing time
    at which the open batch began.
    """

    reason: HoldReason
    query: str
    substream: str | None
    batch_id: int | None
    since_ms: int
    hold: str | None = None
    last_event_ms: int | None = None
    begun_ms: int | None = None


@dataclass(frozen=True, slots=True)
class WatermarkState:
    """The watermark of a job after a command.

    ``watermark`` is the emitted watermark W, ``coalesced_watermark`` is C. ``now_ms`` is the processing time of the
    command. ``state_epoch`` changes when the job starts with new state: after data loss, a deletion or a reset.
    """

    incarnation: int
    state_epoch: str
    now_ms: int
    watermark: int | None
    coalesced_watermark: int | None
    complete: bool
    held_by: Holder | None


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The result of a command that may be repeated. ``applied`` is true if this call had an effect."""

    state: WatermarkState
    applied: bool


@dataclass(frozen=True, slots=True)
class BeginResult:
    """The result of the command ``begin``.

    ``replayed`` is true if the batch had already begun and keeps its ``pinned_watermark``. ``joined`` is true if an
    unexpected query joined a job that has a watermark; its rows below the watermark are late. Event times after
    ``latest_event_time`` are set aside. ``previous_batch_id`` and ``previous_open`` describe the latest batch of this
    checkpoint before this call; if this call repeats the begin of an open batch, before the first begin. A client
    compares both with its own commits to detect that the store has lost its latest writes.
    """

    state: WatermarkState
    pinned_watermark: int | None
    replayed: bool
    joined: bool = False
    latest_event_time: int | None = None
    previous_batch_id: int | None = None
    previous_open: bool = False
    revision: int = 1
