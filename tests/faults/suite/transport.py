"""The HTTP transport of the suite's clients: it chooses a replica for each call, and records every call."""

import random
import re
import time
from collections.abc import Sequence
from dataclasses import replace

from tests.faults.suite.history import Recorder
from tidegate_spark.protocol.effects import NoAnswer, Response, Send
from tidegate_spark.protocol.transport import HttpTransport

CHANGES = 0.05
"""Share of the calls after which a client uses another replica, as behind a load balancer."""


class RecordedTransport(HttpTransport):
    """A transport to several replicas. After a failure, the next call goes to another replica."""

    def __init__(self, urls: Sequence[str], headers: dict[str, str], recorder: Recorder, rng: random.Random) -> None:
        super().__init__(urls[0], headers)
        self._each = [HttpTransport(url, headers) for url in urls]
        self._recorder, self._rng = recorder, rng
        self._current = rng.randrange(len(urls))

    def send(self, request: Send) -> Response:
        """Send a request once, and record the call."""
        if self._rng.random() < CHANGES:
            self._change()
        request = _with_outputs(request)
        number = self._recorder.sent(request.method, request.path, request.body)
        try:
            response = self._each[self._current].send(request)
        except NoAnswer:
            self._change()
            raise
        self._recorder.answered(number, response.status, response.body)
        if response.status >= 500:
            self._change()
        return response

    def _change(self) -> None:
        self._current = (self._current + self._rng.randrange(1, len(self._each) + 1)) % len(self._each)


def _with_outputs(request: Send) -> Send:
    """Return a begin, commit or heartbeat that tells the version of a table, and any other request."""
    if request.body is None or not re.search(r"/batches/\d+(:commit)?$|:heartbeat$", request.path):
        return request
    table = {"table": "lake.rows", "version": str(time.time_ns() | 1)}  # a double does not hold it
    return replace(request, body={**request.body, "outputs": [table]})
