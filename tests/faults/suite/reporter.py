"""Clients that report without batches, and readers of the watermark."""

import json
import random
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from tests.faults.suite.plan import JITTER_MS, JobPlan, event_time
from tidegate_spark.protocol.effects import NoAnswer, Response, Send
from tidegate_spark.protocol.transport import HttpTransport

TIMEOUT_S = 10.0
PAUSE_S = 0.15
STALE = 0.1
"""Share of the reports that are sent a second time later, when their event times are in the past."""


class Client:
    """Calls for one job, with the latest watermark token."""

    def __init__(self, plan: JobPlan, transport: HttpTransport) -> None:
        self.plan, self._transport = plan, transport
        self._epoch: str | None = None
        self._watermark: int | None = None
        self._token: str | None = None

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None, **headers: str) -> Response | None:
        """Make a call once; return None without an answer."""
        try:
            given = {name.replace("_", "-"): value for name, value in headers.items()}
            return self._transport.send(Send(method, f"/v1/jobs/{self.plan.job}{path}", body, given, TIMEOUT_S))
        except NoAnswer:
            return None

    def create(self, max_event_times: Mapping[str, int], names: Sequence[str]) -> bool:
        """Create the job, and declare substreams; return whether both succeeded."""
        created = self.call("PUT", "", self.plan.config, If_None_Match="*")
        return created is not None and created.status in (200, 201, 412) and self.declare(max_event_times, names)

    def declare(self, max_event_times: Mapping[str, int], names: Sequence[str]) -> bool:
        """Declare substreams with their max event times; return whether the call succeeded."""
        times = [max_event_times.get(name) for name in names]
        body = {"query": "", "substreams": list(names), "max_event_times": times, "reason": "the job was lost"}
        answer = self.call("POST", ":declare", body)
        return answer is not None and answer.status == 200

    def report(self, max_event_times: Mapping[str, int]) -> Response | None:
        """Report with the latest token, and keep the token of the answer."""
        columns = {"substreams": list(max_event_times), "max_event_times": list(max_event_times.values())}
        answer = self.call("POST", ":report", {**columns, "watermark_token": self._token})
        if answer is not None and answer.status == 200:
            self._keep(json.loads(answer.body))
        return answer

    def has_moved(self, answer: Response) -> bool:
        """Return whether an answer comes from another state epoch than the one before; remember its epoch."""
        epoch, before = json.loads(answer.body)["state_epoch"], self._epoch
        self._epoch = epoch
        return before is not None and epoch != before

    def _keep(self, answer: Mapping[str, Any]) -> None:
        watermark = answer["watermark"]
        if self._watermark is None or (watermark is not None and watermark >= self._watermark):
            self._watermark, self._token = watermark, answer["watermark_token"]


class Reporter(threading.Thread):
    """A client that reports the event times of its own substreams, and restores them after a loss.

    Args:
        name: Name of the client.
        client: Its calls.
        start: Monotonic time of the start of the run.
        stopping: Ends the client.
        rng: Draws event times.
    """

    def __init__(self, name: str, client: Client, start: float, stopping: threading.Event, rng: random.Random) -> None:
        super().__init__(name=name, daemon=True)
        self._client, self._start, self._stopping, self._rng = client, start, stopping, rng
        self._names = client.plan.reporters[name]
        self._max_event_times: dict[str, int] = {}
        self._is_lost = False

    def run(self) -> None:
        """Report until the run ends."""
        while not self._stopping.wait(self._rng.uniform(PAUSE_S / 2, PAUSE_S)):
            if self._is_lost:
                self._is_lost = not self._client.create(self._max_event_times, self._client.plan.direct)
                continue
            chunk = self._next_chunk()
            for _ in range(1 + (self._rng.random() < STALE)):
                self._report(chunk)

    def _next_chunk(self) -> dict[str, int]:
        now = event_time(time.monotonic() - self._start)
        chunk = {name: now - self._rng.randrange(JITTER_MS) for name in self._names if self._rng.random() < 0.8}
        for name, at in chunk.items():
            self._max_event_times[name] = max(at, self._max_event_times.get(name, at))
        return chunk or {self._names[0]: now}

    def _report(self, chunk: Mapping[str, int]) -> None:
        answer = self._client.report(chunk)
        if answer is None:
            return
        if answer.status == 200:
            self._is_lost = self._client.has_moved(answer) or self._is_lost
        elif answer.status == 404:
            self._is_lost = True
        else:
            self._stopping.wait(0.5)


class Reader(threading.Thread):
    """A client that reads the watermark, the substreams and the frames of a job, and waits for W to move."""

    def __init__(self, name: str, client: Client, stopping: threading.Event, rng: random.Random) -> None:
        super().__init__(name=name, daemon=True)
        self._client, self._stopping, self._rng = client, stopping, rng

    def run(self) -> None:
        """Read until the run ends."""
        watermark = None
        while not self._stopping.wait(self._rng.uniform(PAUSE_S / 2, PAUSE_S)):
            kind = self._rng.random()
            if kind < 0.1:
                self._client.call("GET", "/substreams?limit=1000")
                continue
            if kind > 0.8 and self._client.plan.writers:
                self._client.call("GET", "/frames?limit=30")
                continue
            wait = f"?at_least={watermark + 1000}&timeout_s=3" if kind < 0.3 and watermark is not None else ""
            answer = self._client.call("GET", f"/watermark{wait}")
            if answer is not None and answer.status == 200:
                watermark = json.loads(answer.body)["watermark"]
