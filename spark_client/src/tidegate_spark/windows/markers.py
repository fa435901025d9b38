"""A source without rows, whose offset is the job's watermark: as that moves, Spark runs a batch, though no data came.

The offset is in Spark's log of a batch like that of any source. This module is sent to Spark's own Python by value, so
that it need not be installed there; hence it imports nothing that is not.
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
    # Such a Spark runs all that is there under availableNow as a single batch.
    SupportsTriggerAvailableNow = object  # type: ignore[misc,assignment]
    RUNS_TO_THE_END = False

LOOK_EVERY_S = 0.25
"""Spark asks for the latest offset ten times a second while there is nothing to do."""

ANSWER_WITHIN_S = 2.0
MEMBERS = {"watermark", "coalesced_watermark", "complete"}
"""What an answer has that is the coordinator's."""


class Watermark(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Options: ``url`` of the watermark; ``authorization_token``, a header's value, under a name that Spark redacts;
    ``size``, ``slide`` and ``offset`` of the windows.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._url, self._authorization = options["url"], options.get("authorization_token")
        self._size, self._slide, self._offset = (int(options[name]) for name in ("size", "slide", "offset"))
        self._look_again = 0.0
        self._watermark: int | None = None
        self._only_what_is_there = False

    def prepareForTriggerAvailableNow(self) -> None:
        self._look()
        self._only_what_is_there = True

    def initialOffset(self) -> dict[str, Any]:
        return {"watermark": None}

    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:
        """The watermark, at the end of the last window that it closes: one within a window closes none.

        It never goes back, and a coordinator that is away moves nothing: the query's own calls say so and wait.
        """
        if not self._only_what_is_there and self._is_time():
            self._look()
        return self._offset_after(start)

    def _offset_after(self, start: dict[str, Any] | None) -> dict[str, Any]:
        known = [value for value in (self._watermark, (start or {}).get("watermark")) if value is not None]
        return {"watermark": max(known, default=None)}

    def _is_time(self) -> bool:
        return time.monotonic() >= self._look_again

    def _look(self) -> bool:
        """Takes the watermark of the job as it is; returns whether the coordinator answered."""
        began = time.monotonic()
        state = self._ask()
        ended = time.monotonic()
        # One that is away is asked for a fifth of the time at the most, for Spark waits meanwhile.
        self._look_again = ended + max(LOOK_EVERY_S, 0.0 if state else 4 * (ended - began))
        if state is not None and (found := self._reached(state)) is not None:
            self._watermark = found if self._watermark is None else max(found, self._watermark)
        return state is not None

    def _ask(self) -> dict[str, Any] | None:
        request = urllib.request.Request(self._url)
        if self._authorization:
            request.add_header("Authorization", self._authorization)
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_WITHIN_S) as answer:
                state = json.loads(answer.read())
        except (OSError, ValueError, http.client.HTTPException):
            return None
        # Whatever stands before the coordinator may answer in its stead.
        return state if isinstance(state, dict) and state.keys() >= MEMBERS else None

    def _reached(self, state: dict[str, Any]) -> int | None:
        """How far the windows of a job in this state are closed."""
        watermark: int | None = state["coalesced_watermark"]
        if watermark is None:
            return None
        if state["complete"]:  # then the last windows close, however far they reach beyond it
            watermark += self._size - 1
        return watermark - (watermark - self._offset - self._size) % self._slide

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return []

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        return iter(())


class Markers(DataSource):
    """Rows of any schema, of which there are none."""

    @classmethod
    def name(cls) -> str:
        return "tidegate-markers"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return Watermark(self.options)
