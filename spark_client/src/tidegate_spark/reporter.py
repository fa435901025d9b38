"""Reports from executors: what one task folded, posted over a connection that the Python worker keeps.

``http.client`` and not ``httpx`` here: a third of the latency per call, and no import worth 0.2 s in every worker. The
connection hangs on an entry of ``sys.modules``, because the function that uses it is unpickled afresh for every task.
"""

import http.client
import json
import logging
import sys
import time
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any
from urllib.parse import SplitResult, urlsplit

from tidegate_spark.errors import TidegateError
from tidegate_spark.outage import NoAnswer, Patience, outage_since

log = logging.getLogger("tidegate")

SUBSTREAMS_PER_CALL = 5_000
DELAYS_PER_CALL = 100_000
"""Buckets of delays that go into one call, of all its substreams together."""
_KEEPER = "_tidegate_spark_connections"

Columns = dict[str, list[Any]]


def reports_of(folded: Mapping[str, list[Any]]) -> Iterator[Columns]:
    """What a coordinator is to be told of folded rows, in calls of limited size.

    Rows without an event time say nothing of it; the account of the commit has them.
    """
    told: Columns = {"substreams": [], "max_event_times": [], "counts": [], "future_counts": [], "delays": []}
    names = ("substream", "max_event_time", "rows", "null_event_time", "future")
    delays = folded.get("delays") or [None] * len(folded["rows"])
    for substream, max_event_time, rows, null_event_time, future, delayed in zip(
        *(folded[name] for name in names), delays, strict=True
    ):
        if max_event_time is not None or future:
            values = (substream, max_event_time, rows - null_event_time - future, future, delayed or None)
            for column, value in zip(told.values(), values, strict=True):
                column.append(value)
    if not any(told["delays"]):
        del told["delays"]
    return in_calls(told)


def reports_of_tops(max_event_times: Mapping[str, int]) -> Iterator[Columns]:
    """What a coordinator is to be told of highest event times alone, in calls of limited size."""
    return in_calls({"substreams": list(max_event_times), "max_event_times": list(max_event_times.values())})


def in_calls(columns: Columns) -> Iterator[Columns]:
    """Columns of equal length, cut into as many as go into one call."""
    length = max(map(len, columns.values()))
    first = 0
    while first < length:
        last = min(first + SUBSTREAMS_PER_CALL, length)
        if "delays" in columns:
            sizes = accumulate(len(delayed or ()) for delayed in columns["delays"][first:last])
            last = max(first + 1, first + sum(size <= DELAYS_PER_CALL for size in sizes))
        yield {name: values[first:last] for name, values in columns.items()}
        first = last


def batch_of(query: str, run: Mapping[str, str], batch_id: int) -> dict[str, Any]:
    """The batch that a report belongs to.

    Its entries are told apart by substream alone: the fold has each once, so that all are of one "partition".
    """
    return {"query": query, **run, "batch_id": batch_id, "partition": 0}


@dataclass(frozen=True, slots=True)
class Reporter:
    """Posts a batch's reports. It travels to executors with the function that uses it."""

    url: str
    path: str
    headers: dict[str, str]
    batch: dict[str, Any]
    watermark_token: str
    patience: Patience

    def report(self, reports: Iterable[Columns]) -> tuple[bool, float]:
        """Stages what was seen of the batch; doing it again changes nothing.

        Returns whether all of it came through, and for how long the coordinator was away meanwhile, in seconds.
        """
        waited_s = 0.0
        for columns in reports:
            body = json.dumps({**columns, "batch": self.batch, "watermark_token": self.watermark_token}).encode()
            began = time.monotonic()
            try:
                self.patience.call("Report of a task", partial(self._post, body))
            except TidegateError as error:
                log.warning("Report left to the driver: %s", error)
                return False, waited_s + outage_since(began)
            waited_s += outage_since(began)
        return True, waited_s

    def _post(self, body: bytes, timeout_s: float) -> tuple[int, bytes]:
        address = urlsplit(self.url)
        for reused, connection in _connections(address):
            connection.timeout = timeout_s
            if connection.sock is not None:
                connection.sock.settimeout(timeout_s)
            try:
                connection.request("POST", address.path.rstrip("/") + self.path, body, self.headers)
                response = connection.getresponse()
                return response.status, response.read()
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                if not reused:
                    raise NoAnswer(f"{self.url}: {error or type(error).__name__}") from error
        raise AssertionError("a fresh connection answers or fails")


def _connections(address: SplitResult) -> Iterator[tuple[bool, http.client.HTTPConnection]]:
    """The kept connection, which the other end may have closed meanwhile; then, if it is asked for, a fresh one."""
    keeper = sys.modules.setdefault(_KEEPER, types.ModuleType(_KEEPER)).__dict__
    kept = keeper.get(address.netloc)
    if kept is not None:
        yield True, kept
    kind = http.client.HTTPSConnection if address.scheme == "https" else http.client.HTTPConnection
    keeper[address.netloc] = kind(address.hostname or "", address.port)
    yield False, keeper[address.netloc]
