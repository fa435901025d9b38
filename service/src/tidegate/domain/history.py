"""The past of a job: its history, which explains every movement of the watermark, and its timeline.

The history is exact, but holds a limited number of records. The timeline has a limited resolution, but always covers
the last day.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from tidegate.domain.results import HoldReason, JobWatermark

# The history: a bounded record

RECORDS_KEPT = 10_000
RECORDS_KEPT_MS = 7 * 24 * 3_600_000
NAMES_KEPT = 20
"""Maximum number of substreams that a record names. The ``count`` of the record is the total."""


@dataclass(frozen=True, slots=True)
class AuditInfo:
    """The actor of a command, and the reason."""

    actor: str = ""
    reason: str = ""


NO_AUDIT = AuditInfo()


class Kind(StrEnum):
    """Kinds of records."""

    CREATED = "created"
    CONFIG = "config"
    EMISSION = "emission"
    COALESCED_WATERMARK = "coalesced_watermark"
    WRITTEN = "written"
    IDLE = "idle"
    ACTIVE = "active"
    ALL_IDLE = "all_idle"
    NOT_ALL_IDLE = "not_all_idle"
    BATCH_RELEASED = "batch_released"
    JOINED = "joined"
    FENCED = "fenced"
    FUTURE = "future"
    RELEARNING = "relearning"
    OFFSETS_SKIPPED = "offsets_skipped"
    OFFSETS_RESTARTED = "offsets_restarted"
    RESTARTED = "restarted"
    ENDED = "ended"
    WATERMARK_RESTORED = "watermark_restored"
    UNATTENDED = "unattended"
    HOLD_EXPIRED = "hold_expired"
    FRAME = "frame"
    FRAMES = "frames"
    ACTION = "action"


MOVEMENTS = (Kind.EMISSION, Kind.COALESCED_WATERMARK, Kind.WRITTEN)
"""Kinds of records that contain C, W and the written watermark."""


NUMBERS = (
    "coalesced_watermark",
    "watermark",
    "written_watermark",
    "count",
    "batch_id",
    "unattended_ms",
    "at_most",
    "up_to",
    "start",
    "end",
    "empty",
    "generation",
    "offset_ms",
    "on_time",
    "updated",
    "dropped",
    "diverted",
)
LISTS = ("substreams", "limits", "partitions")
"""Details of records that are not text."""


@dataclass(frozen=True, slots=True)
class Record:
    """An entry of the history at ``at_ms``. The ``details`` depend on the ``kind``.

    =================== =============================================================================================
    created             the job or a new incarnation was created
    config              the configuration changed: ``actor``, ``reason``
    emission            W moved: ``coalesced_watermark``, ``watermark``, ``written_watermark``, the current holder
                        (``held_by``, ``query``, ``substream``, ``batch_id``, ``hold``), and the ``limits`` that let W
                        pass substreams
    coalesced_watermark C moved, W did not: the same details as of ``emission``
    written             only the written watermark moved: the three watermarks
    idle                substreams became idle: the ``limit``, ``query``, ``count``, ``substreams``
    active              idle substreams became active: ``query``, ``count``, ``substreams``
    all_idle            no substream is active any more
    not_all_idle        a substream is active again
    batch_released      an open batch no longer holds W, because of a limit: ``query``, ``batch_id``
    joined              an unexpected query joined: ``query``
    fenced              a newer run replaced a run: ``query``, ``run_id``
    future              event times too far ahead of the clock were set aside: ``query``, ``count``, ``substreams``
    relearning          too many rows were late, so a learned lag was discarded: ``query``, ``count``, ``substreams``
    offsets_skipped     a batch began above the end of the batch before: ``query``, ``batch_id``, ``count`` (offsets
                        that were never read), ``partitions``
    offsets_restarted   a topic was deleted and created again: the same details as of ``offsets_skipped``
    restarted           substreams start again, because their partitions are new: ``query``, ``count``, ``substreams``
    ended               substreams are done, because their source no longer has their partitions: the same details
    watermark_restored  a token restored a watermark that the store had lost: ``watermark``
    unattended          no coordinator evaluated the job for ``unattended_ms``; that time does not count as silence
    hold_expired        a hold expired: ``hold``
    frame               frames were finished, or have a new generation: ``start``, ``end``, ``count`` (finished frames),
                        ``empty`` (those of them without rows), ``generation``, ``state``, ``reason`` of a generation
                        that is not the first, and the rows that it adds: ``on_time``, ``updated``, ``dropped``,
                        ``diverted``
    frames              the declaration of the frames changed: ``every``, ``offset_ms``, ``time_zone``
    action              an operator's command: ``action``, ``actor``, ``reason``, and its object: ``query``, ``count``,
                        ``substreams``; ``successor`` of a query; ``hold``, ``at_most``; ``up_to`` of the input;
                        ``consumer``
    =================== =============================================================================================
    """

    at_ms: int
    kind: str
    details: dict[str, Any]


class History:
    """The latest ``RECORDS_KEPT`` records. Each write removes records older than ``RECORDS_KEPT_MS``."""

    def __init__(self) -> None:
        self._records: deque[Record] = deque(maxlen=RECORDS_KEPT)
        self.written = 0

    def write(self, at_ms: int, kind: str, **details: Any) -> None:
        """Append a record; omit details that are None or ""."""
        self._records.append(Record(at_ms, kind, {k: v for k, v in details.items() if v is not None and v != ""}))
        self.written += 1
        while self._records[0].at_ms < at_ms - RECORDS_KEPT_MS:
            self._records.popleft()

    def __iter__(self) -> Iterator[Record]:
        """Iterate over the records, oldest first."""
        return iter(self._records)

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self._records)


def named(members: Iterable[str]) -> dict[str, Any]:
    """Return the ``count`` of substreams and their first ``NAMES_KEPT`` names, as details of a record."""
    listed = list(members)
    return {"count": len(listed), "substreams": listed[:NAMES_KEPT]}


# The timeline: the watermark and its holder at regular processing times, for charts of the lag

FINE_MS, COARSE_MS = 15_000, 300_000
HolderRange = Literal["15m", "1h", "6h", "1d"]
"""Range of processing time before now for which the holders of the watermark are shown."""
SAMPLES_KEPT = {FINE_MS: 240, COARSE_MS: 288}
"""Number of samples by interval: the last hour, and the last day."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The watermark and its holder after a command at ``at_ms``, the first command of an interval.

    ``reason``, ``query`` and ``name`` describe the holder. ``name`` is the substream, the hold, or "" for an open batch
    or a missing query. ``reason`` is None if the watermark had no holder.
    """

    at_ms: int
    watermark: int | None
    reason: HoldReason | None
    query: str
    name: str

    @classmethod
    def of(cls, state: JobWatermark) -> "Sample":
        """Return the sample of a watermark."""
        holder = state.held_by
        if holder is None:
            return cls(state.now_ms, state.watermark, None, "", "")
        return cls(state.now_ms, state.watermark, holder.reason, holder.query, holder.substream or holder.hold or "")


class Timeline:
    """The latest samples of a job, by interval."""

    def __init__(self) -> None:
        self._samples: dict[int, deque[Sample]] = {
            interval_ms: deque(maxlen=kept) for interval_ms, kept in SAMPLES_KEPT.items()
        }
        self._latest_ms: int | None = None

    def record(self, state: JobWatermark) -> None:
        """Append a sample for each interval that has none yet. After its creation, an empty job has no samples."""
        is_empty = self._latest_ms is not None and state.watermark is None and state.held_by is None
        for interval_ms, samples in self._samples.items():
            if not is_empty and (
                self._latest_ms is None or self._latest_ms // interval_ms < state.now_ms // interval_ms
            ):
                samples.append(Sample.of(state))
        self._latest_ms = state.now_ms

    def samples(self, interval_ms: int) -> list[Sample]:
        """Return the samples of an interval, oldest first."""
        return list(self._samples[interval_ms])
