"""Pages of a sorted table: where a row is in it, and where the page before ended."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Self

from tidegate.domain.results import SubstreamRow
from tidegate.store.replies import substream_key

PLACE = r"^((-?[0-9]{1,16})?:[A-Za-z0-9._~-]{0,128}/.*)?$"
"""The value, where there is one, and the substream."""

Column = Literal["name", "since", "watermark", "max_event_time", "last_event", "late"]

_VALUES: dict[Column, Callable[[SubstreamRow], int | None]] = {
    "name": lambda row: None,
    "since": lambda row: row.since_ms,
    "watermark": lambda row: row.watermark,
    "max_event_time": lambda row: row.max_event_time,
    "last_event": lambda row: row.last_event_ms,
    "late": lambda row: row.counts.late,
}


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """By value, those without one first; then by query and name."""

    has_value: bool
    value: int
    query: str
    substream: str

    @classmethod
    def of(cls, row: SubstreamRow, column: Column) -> Self:
        value = _VALUES[column](row)
        return cls(value is not None, value or 0, row.query, row.substream)

    @classmethod
    def by_name(cls, query: str, substream: str) -> Self:
        return cls(False, 0, query, substream)

    @classmethod
    def after(cls, text: str) -> Self | None:
        """What :attr:`text` wrote, see :data:`PLACE`; None for ""."""
        if not text:
            return None
        value, _, member = text.partition(":")
        return cls(bool(value), int(value or 0), *substream_key(member))

    @property
    def text(self) -> str:
        return f"{self.value if self.has_value else ''}:{self.query}/{self.substream}"
