"""A source without rows. Its offset follows the job's watermark, so Spark runs a batch whenever windows close.

This module is pickled by value, so that Spark's Python does not need this package. The module therefore imports only
:mod:`tidegate_spark.days`, which is pickled with it.
"""

import http.client
import json
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from tidegate_spark.days import LocalDays

try:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

    RUNS_TO_THE_END = True
except ImportError:
    # This version of Spark runs availableNow as a single batch.
    SupportsTriggerAvailableNow = object  # type: ignore[misc,assignment]
    RUNS_TO_THE_END = False

POLL_EVERY_S = 0.25
"""Shortest interval between polls, in seconds. Spark asks an inactive query's source for its offset every 100 ms."""

ANSWER_WITHIN_S = 2.0
MEMBERS = {"watermark", "coalesced_watermark", "complete"}
"""Members of every answer of the coordinator. A proxy's answer lacks them."""


class WatermarkReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A reader of a job's watermark.

    Args:
        options: ``url`` of the watermark, and ``size``, ``slide`` and ``offset`` of the windows. Optional: the
            ``time_zone`` of the windows, and ``authorization_token``, the value of the ``Authorization`` header, under
            a name that Spark redacts.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._url, self._authorization = options["url"], options.get("authorization_token")
        self._size, self._slide, self._offset = (int(options[name]) for name in ("size", "slide", "offset"))
        self._days = LocalDays(options["time_zone"], self._offset) if "time_zone" in options else None
        self._poll_at = 0.0
        self._watermark: int | None = None
        self._available_now = False

    def prepareForTriggerAvailableNow(self) -> None:
        """Read the watermark once for the run."""
        self._poll()
        self._available_now = True

    def initialOffset(self) -> dict[str, Any]:
        """Return the offset before the first batch."""
        return {"watermark": None}

    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:
        """Return the end of the last window that the watermark closes. The offset never goes back.

        If the coordinator does not answer, the offset does not change. The query's batches wait for the coordinator.
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
        began = time.monotonic()
        state = self._ask()
        ended = time.monotonic()
        # Spark waits for this call. Spend at most a fifth of the time on a coordinator that does not answer.
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
        return state if isinstance(state, dict) and state.keys() >= MEMBERS else None

    def _closed_by(self, state: dict[str, Any]) -> int | None:
        watermark: int | None = state["coalesced_watermark"]
        if watermark is None:
            return None
        if self._days is not None:
            return self._days.end_after(watermark - 1) if state["complete"] else self._days.start_before(watermark)
        if state["complete"]:  # the last windows close even if they end above the watermark
            watermark += self._size - 1
        return watermark - (watermark - self._offset - self._size) % self._slide

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return no partitions."""
        return []

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """Return no rows."""
        return iter(())


class Markers(DataSource):
    """A source without rows, with any schema."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the source."""
        return "tidegate-markers"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        """Return the reader."""
        return WatermarkReader(self.options)
