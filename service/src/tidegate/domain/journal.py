"""The journal of a job: a bounded record that explains every movement of the watermark."""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

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


MOVEMENTS = (Kind.EMISSION, Kind.COALESCED_WATERMARK)
"""Kinds of records that contain C and W."""


@dataclass(frozen=True, slots=True)
class Record:
    """A journal entry at ``at_ms``. The ``details`` depend on the ``kind``.

    =================== =============================================================================================
    created             the job or a new incarnation was created
    config              the configuration changed: ``actor``, ``reason``
    emission            W moved: ``coalesced_watermark``, ``watermark``, the current holder (``held_by``, ``query``,
                        ``substream``, ``batch_id``, ``hold``), and the ``limits`` that let W pass substreams
    coalesced_watermark only C moved: the same details as of ``emission``
    idle                substreams became idle: the ``limit``, ``query``, ``count``, ``substreams``
    active              idle substreams became active: ``query``, ``count``, ``substreams``
    all_idle            no substream is active any more
    not_all_idle        a substream is active again
    batch_released      an open batch no longer holds W, because of a limit: ``query``, ``batch_id``
    joined              an unexpected query joined: ``query``
    fenced              a newer run replaced a run: ``query``, ``run_id``
    future              event times too far ahead of the clock were set aside: ``query``, ``count``, ``substreams``
    relearning          too many rows were late, so a learned lag was discarded: ``query``, ``count``, ``substreams``
    watermark_restored  a token restored a watermark that the store had lost: ``watermark``
    unattended          no coordinator evaluated the job for ``unattended_ms``; that time does not count as silence
    hold_expired        a hold expired: ``hold``
    action              an operator's command: ``action``, ``query``, ``count``, ``substreams``, ``actor``, ``reason``
    =================== =============================================================================================
    """

    at_ms: int
    kind: str
    details: dict[str, Any]


class Journal:
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
