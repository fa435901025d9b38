"""The columns and windows of a query, stored beside its checkpoint and checked at each start.

Without the check, a restart with other choices would fail silently. With another substream column, the old substreams
would hold the watermark forever. With another event time, window or aggregate, the stored pinned watermarks and windows
would have another meaning.
"""

from dataclasses import asdict, dataclass
from typing import Self

from tidegate_spark.errors import InvalidUsage
from tidegate_spark.protocol.effects import Procedure, Read, Write
from tidegate_spark.substreams import SourcePartition, Substream

_NAME = "choices"


@dataclass(frozen=True, slots=True)
class QueryChoices:
    """The choices that a query's checkpoint depends on.

    Attributes:
        event_time: The event time column.
        substream: The substream columns; None if the query has one substream, or one for each source partition.
        by_source_partition: Whether each source partition is a substream.
        windows: Size, slide, offset and, if it has one, time zone of the windows; None if the query has no windows.
        results: The columns to group by, and ``name=kind`` of each aggregate; None if the query has no windows.
    """

    event_time: str
    substream: list[str] | None
    by_source_partition: bool
    windows: list[int] | None = None
    results: list[list[str]] | None = None

    @classmethod
    def of(
        cls,
        event_time: str,
        substream: Substream,
        windows: list[int] | None = None,
        results: list[list[str]] | None = None,
    ) -> Self:
        """Return the choices in their stored form."""
        if substream is None or isinstance(substream, SourcePartition):
            columns = None
        else:
            columns = [substream] if isinstance(substream, str) else list(substream)
        return cls(event_time, columns, isinstance(substream, SourcePartition), windows, results)

    @classmethod
    def load(cls) -> Procedure[Self | None]:
        """Return the choices of the previous run; None if none are stored."""
        document = yield Read(_NAME)
        return None if document is None else cls(**document)

    def save(self) -> Procedure[None]:
        """Store the choices."""
        yield Write(_NAME, asdict(self))

    def replaces(self, before: "QueryChoices") -> bool:
        """Return whether the event time or the substreams differ from those of the previous run."""
        mine = self.event_time, self.substream, self.by_source_partition
        return mine != (before.event_time, before.substream, before.by_source_partition)

    def check(self, before: "QueryChoices", replaces_substreams: bool) -> None:
        """Raise InvalidUsage if a query with these choices cannot continue after a run with the choices ``before``."""
        of_windows = (self.windows, self.results, self.event_time if self.windows else None)
        if of_windows != (before.windows, before.results, before.event_time if before.windows else None):
            raise InvalidUsage(
                f"This checkpoint was started with {before._windows()}, not with {self._windows()}: the state of its "
                "windows cannot be converted. Start with a new checkpoint, or with the same windows."
            )
        if self.replaces(before) and not replaces_substreams:
            raise InvalidUsage(
                f"This checkpoint was started with {before._columns()}, not with {self._columns()}. Its earlier "
                "substreams would hold the watermark forever. Start with the same columns, with a new checkpoint, or "
                "with replaces_substreams=True, after which the job no longer waits for the earlier substreams."
            )

    def _columns(self) -> str:
        substream = "SOURCE_PARTITION" if self.by_source_partition else repr(self.substream)
        return f"event_time={self.event_time!r}, substream={substream}"

    def _windows(self) -> str:
        if self.windows is None or self.results is None:
            return "no windows"
        by, aggregates = self.results
        frame = ", ".join(map(str, self.windows))
        return f"windows({frame}).agg({', '.join([*map(repr, by), *aggregates])}) of {self.event_time!r}"
