"""Reports from executors: the fold of one task, posted over a connection that the Python worker keeps.

This module uses ``http.client``, which has a third of the latency of ``httpx`` per call and saves every worker an
import of 0.2 s.
"""

import http.client
import json
import logging
import sys
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import SplitResult, urlsplit

from tidegate_spark.clock import SYSTEM_CLOCK
from tidegate_spark.errors import TidegateError
from tidegate_spark.protocol.effects import NoAnswer, Response, Send
from tidegate_spark.protocol.reports import Columns
from tidegate_spark.protocol.retry import RetryPolicy, call, outage_since, run_call

log = logging.getLogger("tidegate")

# Functions are unpickled for every task, so connections are kept in an entry of sys.modules.
_KEEPER = "_tidegate_spark_connections"


@dataclass(frozen=True, slots=True)
class Reporter:
    """A sender of reports of one batch. Spark pickles the sender with the function that sends the reports."""

    url: str
    path: str
    headers: dict[str, str] = field(repr=False)  # may have the key
    batch: dict[str, Any]
    watermark_token: str
    policy: RetryPolicy

    def report(self, reports: Iterable[Columns]) -> tuple[bool, float]:
        """Stage reports. Repeating the call changes nothing.

        Returns:
            Whether the coordinator has all reports, and the seconds that this task waited for the coordinator.
        """
        waited_s = 0.0
        for columns in reports:
            body = {**columns, "batch": self.batch, "watermark_token": self.watermark_token}
            request = partial(Send, "POST", self.path, body, self.headers)
            began = SYSTEM_CLOCK.monotonic()
            try:
                run_call(call("Report of a task", request, self.policy, SYSTEM_CLOCK), self._send, SYSTEM_CLOCK)
            except TidegateError as error:
                log.warning("The driver sends the report that this task could not send: %s", error)
                return False, waited_s + outage_since(began, SYSTEM_CLOCK)
            waited_s += outage_since(began, SYSTEM_CLOCK)
        return True, waited_s

    def _send(self, request: Send) -> Response:
        address, body = urlsplit(self.url), json.dumps(request.body).encode()
        for reused, connection in _connections(address):
            connection.timeout = request.timeout_s
            if connection.sock is not None:
                connection.sock.settimeout(request.timeout_s)
            try:
                connection.request(request.method, address.path.rstrip("/") + request.path, body, dict(request.headers))
                response = connection.getresponse()
                return Response(response.status, response.read(), response.getheader("Retry-After"))
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                if not reused:
                    raise NoAnswer(f"{self.url}: {error or type(error).__name__}") from error
        raise AssertionError("a call over a new connection returns or raises")


def _connections(address: SplitResult) -> Iterator[tuple[bool, http.client.HTTPConnection]]:
    """Yield the kept connection, which the coordinator may have closed, and then a new one."""
    keeper = sys.modules.setdefault(_KEEPER, types.ModuleType(_KEEPER)).__dict__
    kept = keeper.get(address.netloc)
    if kept is not None:
        yield True, kept
    kind = http.client.HTTPSConnection if address.scheme == "https" else http.client.HTTPConnection
    keeper[address.netloc] = kind(address.hostname or "", address.port)
    yield False, keeper[address.netloc]
