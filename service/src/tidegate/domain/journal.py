"""What the machine did: a bounded record, from which every watermark can be explained afterwards."""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

RECORDS_KEPT = 10_000
RECORDS_KEPT_MS = 7 * 24 * 3_600_000
NAMES_KEPT = 20
"""How many of the substreams that something happened to are named; the count says how many there were."""


@dataclass(frozen=True, slots=True)
class Why:
    """Who did something, and for what reason."""

    actor: str = ""
    reason: str = ""


UNEXPLAINED = Why()


class Kind(StrEnum):
    """Kinds of records."""

    CREATED = "created"
    CONFIG = "config"
    EMISSION = "emission"
    COALESCED = "coalesced_watermark"
    IDLE = "idle"
    ACTIVE = "active"
    ALL_IDLE = "all_idle"
    NOT_ALL_IDLE = "not_all_idle"
    BATCH_RELEASED = "batch_released"
    JOINED = "joined"
    FENCED = "fenced"
    FUTURE = "future"
    RELEARNING = "relearning"
    WATERMARK_RESTORED = "watermark_restored"
    UNATTENDED = "unattended"
    HOLD_EXPIRED = "hold_expired"
    ACTION = "action"


MOVEMENTS = (Kind.EMISSION, Kind.COALESCED)
"""Records with the watermark and the coalesced watermark."""


@dataclass(frozen=True, slots=True)
class Record:
    """One thing that happened at ``at_ms``; what ``details`` there are depends on the ``kind``.

    ============== ==================================================================================================
    created        the job, or a new incarnation of it
    rules          were changed: ``revision``
    emission       the emitted watermark moved: ``coalesced_watermark``, ``watermark``, who holds it now (``held_by``,
    ``query``,
                   ``substream``, ``batch_id``, ``hold``), and the ``limits`` that let it pass substreams
    coalesced      the coalesced watermark moved and the emitted one did not: the same members
    idle           substreams no longer count, by which ``limit``: ``query``, ``count``, ``substreams``
    wake           idle substreams count again: ``query``, ``count``, ``substreams``
    all_idle       no substream counts any more
    not_all_idle   one does again
    batch_released an open batch no longer holds the watermark (``max_batch_hold_ms``): ``query``, ``batch_id``
    joined         a query that nobody expected: ``query``
    fenced         a run was replaced by another: ``query``, ``run_id``
    future         event times too far ahead of the clock were ignored: ``query``, ``count``, ``substreams``
    relearn        rows come later than was learnt, and it is learnt anew: ``query``, ``count``, ``substreams``
    healed         a token proved a watermark that the store had forgotten
    absence        nobody looked for so long (``unattended_ms``) that it counts as nobody's silence
    hold_expired   a hold came to its end: ``hold``
    action         somebody did something: ``action``, ``query``, ``count``, ``substreams``, ``actor``, ``reason``, ...
    ============== ==================================================================================================
    """

    at_ms: int
    kind: str
    details: dict[str, Any]


class Journal:
    """The last records, at most ``RECORDS_KEPT``, none older than ``RECORDS_KEPT_MS`` when the next one is written."""

    def __init__(self) -> None:
        self._records: deque[Record] = deque(maxlen=RECORDS_KEPT)
        self.written = 0

    def write(self, at_ms: int, kind: str, **details: Any) -> None:
        """Details that are None or "" are left out."""
        self._records.append(Record(at_ms, kind, {k: v for k, v in details.items() if v is not None and v != ""}))
        self.written += 1
        while self._records[0].at_ms < at_ms - RECORDS_KEPT_MS:
            self._records.popleft()

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)


def named(members: Iterable[str]) -> dict[str, Any]:
    """``count`` and the first of the ``substreams``, for a record."""
    listed = list(members)
    return {"count": len(listed), "substreams": listed[:NAMES_KEPT]}
