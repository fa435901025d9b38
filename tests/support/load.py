"""Clients that commit batches over HTTP and repeat what the coordinator did not confirm."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import httpx

from tests.support.api import CONFIG, RUN

STEP = 1000
# With a timeout, the job is in the set of due jobs, so all keys of its function calls exist.
TIMED = CONFIG | {"idle_timeout_ms": 600_000}
SUBSTREAMS = ["a", "b"]
REPEATED = (409, 503)
"""Statuses after which a client repeats its batch: Redis was away, or has lost the beginning of the batch."""


class Client:
    """A client of one job. Each batch has one row on time in each substream.

    Attributes:
        committed: Number of confirmed commits.
        watermarks: The watermark in each answer, in order.
        confirmed_s: Time of each confirmed commit.
        problems: Codes of the answers that made the client repeat a call.
        failure: An error that the client cannot repair.
    """

    def __init__(self, url: str, job: str) -> None:
        self.job, self.committed = job, 0
        self.watermarks: list[int] = []
        self.confirmed_s: list[float] = []
        self.problems: list[str] = []
        self.failure: BaseException | None = None
        self._http = httpx.Client(base_url=url, timeout=60)
        self._token: str | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=job)

    def start(self) -> None:
        """Commit batches until :meth:`stop`."""
        self._thread.start()

    def stop(self) -> None:
        """Finish the batch in progress; raise the error of a failed client."""
        self._stopping.set()
        self._thread.join()
        self._http.close()
        if self.failure is not None:
            raise self.failure

    def longest_gap_s(self) -> float:
        """Return the longest time between two confirmed commits."""
        return max(later - earlier for earlier, later in zip(self.confirmed_s, self.confirmed_s[1:], strict=False))

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._finish_batch(self.committed)
                self.committed += 1
                self.confirmed_s.append(time.monotonic())
        except BaseException as error:  # noqa: BLE001  # the test raises it
            self.failure = error

    def _finish_batch(self, batch: int) -> None:
        deadline, pinned = time.monotonic() + 120, dict[str, Any]()
        while True:
            try:
                begun = self._call("PUT", f"/queries/q/batches/{batch}", RUN | pinned)
                pinned = {"pinned_watermark": begun["pinned_watermark"]}
                times = [(batch + 1) * STEP] * len(SUBSTREAMS)
                of_batch = {"query": "q", **RUN, "batch_id": batch, "partition": 0}
                report = {"substreams": SUBSTREAMS, "max_event_times": times, "counts": [1, 1], "batch": of_batch}
                self._call("POST", ":report", report)
                none = [0] * len(SUBSTREAMS)
                rows = {"substreams": SUBSTREAMS, "on_time": [1, 1], "late": none, "null_event_time": none}
                self._call("POST", f"/queries/q/batches/{batch}:commit", RUN | {"rows": {**rows}})
                return
            except _NotConfirmed as refused:
                self.problems.append(str(refused))
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def _call(self, method: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        try:
            answer = self._http.request(
                method, f"/v1/jobs/{self.job}{path}", json=body | {"watermark_token": self._token}
            )
        except httpx.TransportError as error:  # the coordinator is restarted
            raise _NotConfirmed(repr(error)) from error
        if answer.status_code in REPEATED:
            raise _NotConfirmed(answer.json()["code"])
        if answer.status_code == 404:  # the server was lost before a replica knew the job
            self._http.put(f"/v1/jobs/{self.job}", json=TIMED, headers={"If-None-Match": "*"})
            raise _NotConfirmed("job_not_found")
        found: dict[str, Any] = answer.raise_for_status().json()
        self._token = found.get("watermark_token") or self._token
        if found.get("watermark") is not None:
            self.watermarks.append(found["watermark"])
        return found


class _NotConfirmed(Exception):
    """Raised if the client must repeat its batch."""


@contextmanager
def load(url: str, jobs: Sequence[str]) -> Iterator[list[Client]]:
    """Commit batches of several jobs at the same time until the end of the block."""
    with httpx.Client(base_url=url, timeout=60) as http:
        for job in jobs:
            http.put(f"/v1/jobs/{job}", json=TIMED, headers={"If-None-Match": "*"}).raise_for_status()
    clients = [Client(url, job) for job in jobs]
    for client in clients:
        client.start()
    try:
        yield clients
    finally:
        for client in clients:
            client.stop()


def advance(clients: Sequence[Client], batches: int, timeout_s: float = 180) -> None:
    """Wait until each client has committed further batches."""
    goals = {client: client.committed + batches for client in clients}
    deadline = time.monotonic() + timeout_s
    while lagging := [client for client, goal in goals.items() if client.committed < goal]:
        failed = [client for client in lagging if client.failure is not None]
        assert not failed, f"{failed[0].job}: {failed[0].failure!r}"
        assert time.monotonic() < deadline, f"{lagging[0].job} commits no batch: {lagging[0].problems[-3:]}"
        time.sleep(0.05)


def check_monotone(clients: Sequence[Client]) -> None:
    """Check that no client received a watermark lower than one that it had received before."""
    for client in clients:
        assert client.watermarks == sorted(client.watermarks), client.job


def check_exact(clients: Sequence[Client], read: Callable[[str], dict[str, Any]]) -> None:
    """Check that each confirmed batch was counted once, and that the watermark follows from the last batch."""
    for client in clients:
        status = read(f"/v1/jobs/{client.job}")
        assert status["rows"]["on_time"] == client.committed * len(SUBSTREAMS), client.job
        assert status["watermark"] == client.committed * STEP - CONFIG["policy"]["lag_ms"], client.job  # type: ignore[operator]
