"""A source without rows, whose offset is the job's watermark: when it moves, Spark runs a batch without new data.

Spark logs the offset of each batch as it does for any source. This module is sent to Spark's own Python by value, so
that it need not be installed there; for this reason it imports nothing else of this package.
"""

import http.client
import json
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

try:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

    RUNS_TO_THE_END = True
except ImportError:
    # This version of Spark runs availableNow as a single batch.
    SupportsTriggerAvailableNow = object  # type: ignore[misc,assignment]
    RUNS_TO_THE_END = False

POLL_EVERY_S = 0.25
"""Least interval of polls; an inactive query asks for the latest offset ten times a second."""

ANSWER_WITHIN_S = 2.0
MEMBERS = {"watermark", "coalesced_watermark", "complete"}
"""Members of the coordinator's answer that tell it from that of a proxy."""


class WatermarkReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the watermark of a job.

    Args:
        options: ``url`` of the watermark; ``authorization_token``, the value of a header, under a name that Spark
            redacts; ``size``, ``slide`` and ``offset`` of the windows.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._url, self._authorization = options["url"], options.get("authorization_token")
        self._size, self._slide, self._offset = (int(options[name]) for name in ("size", "slide", "offset"))
        self._poll_at = 0.0
        self._watermark: int | None = None
        self._available_now = False

    def prepareForTriggerAvailableNow(self) -> None:
        """Read the watermark once, for a run over the input that exists."""
        self._poll()
        self._available_now = True

    def initialOffset(self) -> dict[str, Any]:
        """Return the offset before the first batch."""
        return {"watermark": None}

    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:
        """Return the end of the last window that the watermark closes.

        It never goes back. If the coordinator does not answer it stays, and the calls of the query's batches wait.
        """
        if not self._available_now and self._is_poll_due():
            self._poll()
        return self._offset_after(start)

    def _offset_after(self, start: dict[str, Any] | None) -> dict[str, Any]:
        known = [value for value in (self._watermark, (start or {}).get("watermark")) if value is not None]
        return {"watermark": max(known, default=None)}

    def _is_poll_due(self) -> bool:
        return time.monotonic() >= self._poll_at

    def _poll(self) -> None:
        """Read the watermark."""
        began = time.monotonic()
        state = self._ask()
        ended = time.monotonic()
        # Spark waits meanwhile, so at most a fifth of the time goes to a coordinator that does not answer.
        self._poll_at = ended + max(POLL_EVERY_S, 0.0 if state else 4 * (ended - began))
        if state is not None and (closed := self._closed_by(state)) is not None:
            self._watermark = closed if self._watermark is None else max(closed, self._watermark)

    def _ask(self) -> dict[str, Any] | None:
        request = urllib.request.Request(self._url)
        if self._authorization:
            request.add_header("Authorization", self._authorization)
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_WITHIN_S) as answer:
                state = json.loads(answer.read())
        except (OSError, ValueError, http.client.HTTPException):
            return None
        # A proxy may have answered.
        return state if isinstance(state, dict) and state.keys() >= MEMBERS else None

    def _closed_by(self, state: dict[str, Any]) -> int | None:
        """Return the end of the last window that a job in this state closes."""
        watermark: int | None = state["coalesced_watermark"]
        if watermark is None:
            return None
        if state["complete"]:  # the last windows close, even if they end above it
            watermark += self._size - 1
        return watermark - (watermark - self._offset - self._size) % self._slide

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return no partitions: the source has no rows."""
        return []

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """Return no rows."""
        return iter(())


class Markers(DataSource):
    """A source of any schema without rows."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the source."""
        return "tidegate-markers"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        """Return the reader."""
        return WatermarkReader(self.options)
