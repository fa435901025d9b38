"""Reports from executors: what one task folded, posted over a connection that the Python worker keeps.

``http.client`` and not ``httpx`` here: a third of the latency per call, and no import worth 0.2 s in every worker. The
connection hangs on an entry of ``sys.modules``, because the function that uses it is unpickled afresh for every task.
"""

import http.client
import json
import sys
import time
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, urlsplit

from tidegate_spark.outage import NoAnswer, Patience, outage_since

SUBSTREAMS_PER_CALL = 5_000
TIMEOUT_S = 30.0
_KEEPER = "_tidegate_spark_connections"


@dataclass(frozen=True, slots=True)
class Reporter:
    """Posts a batch's reports. It travels to executors with the function that uses it."""

    url: str
    path: str
    headers: dict[str, str]
    batch: dict[str, Any]
    watermark_token: str
    patience: Patience

    def report(self, partition: int, columns: dict[str, list[Any]]) -> float:
        """Stages what was seen of the batch in one source partition; doing it again changes nothing.

        Returns for how long the coordinator was away meanwhile, in seconds.

        :param columns: ``substreams``, ``event_times``, ``min_event_times`` and ``counts``, of equal length.
        :raises Refused, CoordinatorUnavailable: see the errors; the task then fails.
        """
        waited_s = 0.0
        for first in range(0, len(columns["substreams"]), SUBSTREAMS_PER_CALL):
            body = json.dumps(
                {name: values[first : first + SUBSTREAMS_PER_CALL] for name, values in columns.items()}
                | {"batch": {**self.batch, "partition": partition}, "watermark_token": self.watermark_token}
            ).encode()
            began = time.monotonic()
            self.patience.call(f"Report of partition {partition}", lambda body=body: self._post(body))  # type: ignore[misc]
            waited_s += outage_since(began)
        return waited_s

    def _post(self, body: bytes) -> tuple[int, bytes]:
        address = urlsplit(self.url)
        for reused, connection in _connections(address):
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
    keeper[address.netloc] = kind(address.hostname or "", address.port, timeout=TIMEOUT_S)
    yield False, keeper[address.netloc]
