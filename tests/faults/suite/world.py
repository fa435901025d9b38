"""The processes, proxies and clients of one run."""

import json
import random
import secrets
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

from tests.faults.suite.history import History, Recorder
from tests.faults.suite.plan import LAG_MS, JobPlan, Plan, event_time
from tests.faults.suite.processes import Replica, WriterProcess, end
from tests.faults.suite.reporter import Client, Reader, Reporter
from tests.faults.suite.store import Store
from tests.faults.suite.transport import RecordedTransport
from tests.faults.suite.writer import Settings
from tests.support.proxy import Proxies
from tidegate_spark.testing.server import CoordinatorProcess

LIVE_S = 60.0
"""Time after the end of a fault within which each watermark reaches what the policy promised then."""
DISK_BYTES = 160 * 1024 * 1024


@dataclass(frozen=True)
class Loss:
    """A fault after which the store may lack calls that it acknowledged.

    Attributes:
        start: Monotonic time before the fault.
        end: Monotonic time after the fault.
        window_s: Time before ``start`` whose acknowledged calls may be lost; infinite if all calls are lost.
    """

    start: float
    end: float
    window_s: float


class NotLive(Exception):
    """A watermark did not move in time after a fault."""


class World:
    """One run: a store, replicas, clients and their history.

    Args:
        plan: The decisions of the seed.
        directory: An empty directory for all files of the run.
        binary: The server of the store.
        has_clock: Whether the clock of the store can be moved.
    """

    def __init__(self, plan: Plan, directory: Path, binary: str, has_clock: bool) -> None:
        self.plan, self.directory = plan, directory
        self.rng = random.Random(f"{plan.seed}-world")
        self._stack = ExitStack()
        self._history = directory / "history"
        self._history.mkdir()
        self.disk = directory / "disk"
        self.disk.mkdir()
        self.has_disk = self._mount()
        self.start = time.monotonic()
        self.history = History(self._history)
        self.losses: list[Loss] = []
        self.other_version_from = float("inf")
        self.store = Store(binary, self.disk, plan.appendfsync, has_clock)
        self.proxies = Proxies(f"{plan.seed}-proxies")
        self.replicas: list[Replica] = []
        self.writers: list[WriterProcess] = []
        self._stopping, self._ending = threading.Event(), threading.Event()
        self._clients: list[threading.Thread] = []

    def _mount(self) -> bool:
        """Give the store a small disk of its own; return False if this user may not mount one."""
        command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(self.disk)]
        try:
            mounted = subprocess.run(command, capture_output=True).returncode == 0
        except FileNotFoundError:
            return False
        if mounted:
            self._stack.callback(subprocess.run, ["umount", "--lazy", str(self.disk)], check=True)
        return mounted

    # -- start and end --------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *raised: object) -> None:
        self._stack.close()

    def _start(self) -> None:
        self._stack.callback(self.store.close)
        self.store.start()
        self._stack.enter_context(self.proxies)
        secret = secrets.token_hex(16)
        for number in range(self.plan.replicas):
            to_store = self.proxies.to(lambda: self.store.port)
            settings: dict[str, Any] = {"redis_url": f"redis://127.0.0.1:{to_store.port}/0", "token_secret": secret}
            process = CoordinatorProcess(self.directory / f"replica-{number}", **settings)
            replica = Replica(process, self.proxies.to(partial(lambda of: of.port, process)), to_store)
            self._stack.callback(replica.stop, True)
            replica.start()
            self.replicas.append(replica)
        self.start = time.monotonic()
        for job in self.plan.jobs:
            self._start_clients(job)
        self._stack.callback(self._ending.set)
        threading.Thread(target=self._supervise, name="supervisor", daemon=True).start()

    def _transport(self, client: str) -> RecordedTransport:
        recorder, rng = Recorder(self._history, client), random.Random(f"{self.plan.seed}-{client}")
        return RecordedTransport([each.url for each in self.replicas], {}, recorder, rng)

    def _start_clients(self, job: JobPlan) -> None:
        created = Client(job, self._transport(f"{job.job}-setup")).create({}, job.direct)
        assert created, f"job {job.job} cannot be created"
        for name in job.reporters:
            rng = random.Random(f"{self.plan.seed}-{name}")
            self._clients.append(Reporter(name, Client(job, self._transport(name)), self.start, self._stopping, rng))
        reader = f"{job.job}-reader"
        rng = random.Random(f"{self.plan.seed}-{reader}")
        self._clients.append(Reader(reader, Client(job, self._transport(reader)), self._stopping, rng))
        for query in job.writers:
            writer = WriterProcess(partial(self._settings, job, query), self.directory, query)
            checkpoint = self.checkpoint(query)
            (checkpoint / "offsets").mkdir(parents=True)
            (checkpoint / "commits").mkdir()
            (checkpoint / "metadata").write_text(json.dumps({"id": f"checkpoint-{query}"}))
            self._stack.callback(writer.kill)
            writer.start()
            self.writers.append(writer)
        for client in self._clients:
            if not client.is_alive():
                client.start()

    def checkpoint(self, query: str) -> Path:
        """Return the directory of a query's checkpoint."""
        return self.directory / f"checkpoint-{query}"

    def _settings(self, job: JobPlan, query: str, client: str) -> Settings:
        seed = random.Random(f"{self.plan.seed}-{client}").randrange(2**32)
        urls = [each.url for each in self.replicas]
        names, checkpoint = list(job.writers[query]), str(self.checkpoint(query))
        config = job.config
        return Settings(
            client,
            job.job,
            query,
            names,
            config,
            urls,
            str(self._history),
            checkpoint,
            self.start,
            seed,
            self.plan.continues,
            has_windows=seed % 2 == 0,
        )

    def _supervise(self) -> None:
        while not self._ending.wait(0.3):
            for writer in self.writers:
                writer.supervise()

    def quiesce(self) -> None:
        """Stop all clients after their current calls, and read the rest of the history."""
        self._ending.set()
        self._stopping.set()
        for client in self._clients:
            client.join(60)
        for writer in self.writers:
            writer.kill()
        self.history.read()

    def counted(self, job: JobPlan) -> dict[str, int]:
        """Return the row counts of a job by row class.

        Raises:
            NotLive: If no replica returns them within :data:`LIVE_S`.
        """
        rows: dict[str, int] = self._read(job, "")["rows"]
        return rows

    def frames(self, job: JobPlan) -> list[dict[str, Any]]:
        """Return the latest frames of a job; NotLive as for :meth:`counted`."""
        frames: list[dict[str, Any]] = self._read(job, "/frames?limit=1000")["frames"]
        return frames

    def frame_events(self, job: JobPlan) -> list[dict[str, Any]]:
        """Return the events about frames that the history of a job keeps, first one first; NotLive as above."""
        found: list[dict[str, Any]] = []
        following = ""
        while True:
            page = self._read(job, f"/history?kind=frame&limit=1000{following}")
            found += page["records"]
            if page["next"] is None:
                return found[::-1]
            following = f"&before={page['next']}"

    def _read(self, job: JobPlan, path: str) -> dict[str, Any]:
        client, deadline = Client(job, self._transport(f"{job.job}-final")), time.monotonic() + LIVE_S
        while time.monotonic() < deadline:
            answer = client.call("GET", path)
            if answer is not None and answer.status == 200:
                found: dict[str, Any] = json.loads(answer.body)
                return found
            time.sleep(0.5)
        raise NotLive(f"{job.job}: no replica answers GET {path or job.job} within {LIVE_S:.0f} s.")

    # -- the run --------------------------------------------------------------------------------------------------

    @contextmanager
    def losing(self, window_s: float) -> Iterator[None]:
        """Record that the block may lose acknowledged calls of this time before it; infinity: all calls."""
        start = time.monotonic()
        yield
        self.losses.append(Loss(start, time.monotonic(), window_s))

    def zombie(self, process: "subprocess.Popen[bytes]", timeout_s: float) -> None:
        """Let a process run until it ends by itself, and kill it after ``timeout_s``."""
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout_s)
        end(process)

    def elapsed(self) -> float:
        """Return the time of the run in seconds."""
        return time.monotonic() - self.start

    def recover(self) -> float:
        """Wait until the watermark of each job passes what the clients have read by now; return the time it took.

        Raises:
            NotLive: If a watermark does not reach it within :data:`LIVE_S`.
        """
        began = time.monotonic()
        promised = event_time(self.elapsed()) - LAG_MS
        missing = {job.job for job in self.plan.jobs}
        self.history.read()
        while missing:
            for call in self.history.read():
                watermark = call.answer.get("watermark")
                if call.succeeded and call.sent > began and watermark is not None and watermark >= promised:
                    missing.discard(call.job)
            if time.monotonic() - began > LIVE_S:
                raise NotLive(f"{', '.join(sorted(missing))}: W has not reached {promised} within {LIVE_S:.0f} s.")
            time.sleep(0.05)
        return time.monotonic() - began
