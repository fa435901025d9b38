"""A run: cases against one coordinator, several at once, with a check of its memory and its log."""

import asyncio
import re
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

from tests.fuzz.cases import Cases
from tests.fuzz.messages import Case
from tests.fuzz.oracle import Reader
from tests.support.api import CONFIG
from tidegate.auth import keyring
from tidegate.auth.roles import Role
from tidegate_spark.testing import CoordinatorProcess

AT_ONCE = 64
REQUEST_TIMEOUT_S = 3
ANSWER_S = 60.0
"""Time in which each case must end. It is long, because the machine may be slow."""
MAX_GROWTH_MB = 128
SHOWN_BYTES = 2000
MAX_FAILURES = 10
LARGE = 200
"""Number of large bodies at the begin of the warm-up."""
STEP = 1000
"""Number of requests between two measurements of memory."""
SETTINGS = {
    "max_wait_s": "0.2",
    "request_timeout_s": str(REQUEST_TIMEOUT_S),
    "max_jobs": "30",
    "max_substreams": "1000",
    "log_format": "text",
}
SERIOUS = re.compile(r"Traceback|\[(error|critical) *\]")
"""Lines of the log that no request may cause."""
RESET = struct.pack("ii", 1, 0)
"""Option of a socket whose end resets the connection, so that no port stays in use after it."""


@dataclass
class Failure:
    """A case with a wrong answer."""

    number: int
    case: Case
    reason: str

    def describe(self, seed: int) -> str:
        """Return the seed, the number and the bytes of the case."""
        wire = self.case.wire
        more = f"... ({len(wire)} bytes)" if len(wire) > SHOWN_BYTES else ""
        return (
            f"request {self.number} ({self.case.kind}, {self.case.operation}): {self.reason}\n"
            f"  {wire[:SHOWN_BYTES]!r}{more}\n  repeat: make fuzz SEED={seed} REQUEST={self.number}"
        )


@dataclass
class Result:
    """What a run has found."""

    failures: list[Failure] = field(default_factory=list)
    statuses: Counter[tuple[str, int]] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    slowest_s: dict[str, float] = field(default_factory=dict)
    slowest: tuple[float, int] = (0, 0)  # of complete requests
    grown_mb: float = 0.0
    peak_mb: float = 0.0
    log: list[str] = field(default_factory=list)

    @property
    def requests(self) -> int:
        """Number of cases."""
        return sum(self.kinds.values())

    def wrong(self, seed: int) -> list[str]:
        """Return what is wrong: answers, exceptions in the log, and growth of memory."""
        found = [failure.describe(seed) for failure in self.failures]
        found += [f"in the log: {line}" for line in self.log[:MAX_FAILURES]]
        if self.grown_mb > MAX_GROWTH_MB:
            found.append(
                f"memory grew by {self.grown_mb:.0f} MB after the warm-up; at most {MAX_GROWTH_MB} MB expected"
            )
        return found


class Run:
    """A run against one coordinator.

    Args:
        directory: Directory of the coordinator.
        seed: Seed of the cases.
        show: Function that prints a line.
    """

    def __init__(self, directory: Path, seed: int, show: Callable[[str], None] = lambda line: None) -> None:
        keys = directory / "keys.json"
        presented = [keyring.create(keys, "root", Role.ADMIN, "")]
        presented += [keyring.create(keys, role.value, role, "fuzzed-1") for role in Role]
        self.cases = Cases(seed, presented)
        self.result = Result()
        self._key, self._seed, self._show = presented[0], seed, show
        self.process = CoordinatorProcess(directory / "data", 0, keys_file=str(keys), **SETTINGS)

    def numbers(self, requests: int, warm_up: int) -> Result:
        """Send the cases with the numbers from 0.

        The growth of memory is the lowest value during the last ``warm_up`` cases, minus that during the first ones.
        The allocator keeps some of the memory of large bodies for a while, so single values differ by 80 MB.
        """
        with self.process:
            coordinator = psutil.Process(self.process.pid)
            for case in self.cases.preparation():
                self._send(iter([(-1, case)]))
            # The allocator keeps memory that many large bodies at once have used, so the warm-up uses it, too.
            self._send((-1, self.cases.largest(number)) for number in range(LARGE))
            sizes: list[float] = []
            for done in range(0, requests, STEP):
                upto = min(requests, done + STEP)
                self._send((number, self.cases.case(number)) for number in range(done, upto))
                sizes.append(coordinator.memory_info().rss / 1e6)
                self._show_progress(upto, sizes[-1])
                if len(self.result.failures) >= MAX_FAILURES:
                    break
            self.result.peak_mb = max(sizes)
            compared = max(1, warm_up // STEP)
            self.result.grown_mb = min(sizes[-compared:]) - min(sizes[:compared])
            self._check_service()
        self._check_log()
        return self.result

    def _show_progress(self, done: int, size_mb: float) -> None:
        slowest_s, number = self.result.slowest
        self._show(
            f"  {done} requests, {size_mb:.0f} MB, {len(self.result.failures)} wrong answers, the slowest after "
            f"{slowest_s:.1f} s (request {number})"
        )
        self.result.slowest = (0, 0)

    def one(self, number: int) -> Result:
        """Send one case to a coordinator with new jobs."""
        with self.process:
            for case in [*self.cases.preparation(), self.cases.case(number)]:
                self._send(iter([(number, case)]))
            self._check_service()
        self._check_log()
        return self.result

    def _check_service(self) -> None:
        """Check that the coordinator still answers a valid report."""
        headers = {"Authorization": f"Bearer {self._key}"}
        with httpx.Client(base_url=self.process.url, headers=headers, timeout=ANSWER_S) as http:
            http.put("/v1/jobs/fuzzed-end", json=CONFIG, headers={"If-None-Match": "*"}).raise_for_status()
            body = {"substreams": ["HNL"], "max_event_times": [1_357_554_600_000]}
            answer = http.post("/v1/jobs/fuzzed-end:report", json=body).raise_for_status()
            assert answer.json()["watermark"] == 1_357_554_600_000 - 10, answer.text

    def _check_log(self) -> None:
        log = (self.process.data_dir / "coordinator.log").read_text(errors="replace").splitlines()
        self.result.log = [line for line in log if SERIOUS.search(line)]

    def _send(self, cases: Iterator[tuple[int, Case]]) -> None:
        async def worker() -> None:
            for number, case in cases:
                await self._one(number, case)

        async def all_workers() -> None:
            await asyncio.gather(*[worker() for _ in range(AT_ONCE)])

        asyncio.run(all_workers())

    async def _one(self, number: int, case: Case) -> None:
        began, reader = time.monotonic(), Reader(case)
        ended = False
        try:
            async with asyncio.timeout(ANSWER_S):
                ended = await exchange("127.0.0.1", self.process.port, case, reader)
        except TimeoutError:
            pass
        took = time.monotonic() - began
        self.result.kinds[case.kind] += 1
        self.result.slowest_s[case.kind] = max(self.result.slowest_s.get(case.kind, 0), took)
        if case.must_answer:
            self.result.slowest = max(self.result.slowest, (took, number))
        for answer in reader.answers:
            if case.kind in ("valid", "document", "text", "preparation"):
                self.result.statuses[case.operation, answer.status] += 1
        reason = reader.wrong(ended)
        if reason is not None:
            failure = Failure(number, case, reason)
            self.result.failures.append(failure)
            self._show(failure.describe(self._seed))


async def exchange(host: str, port: int, case: Case, reader: Reader) -> bool:
    """Send a case, and read answers until they are complete. Return whether the coordinator ended the connection."""
    incoming, outgoing = await asyncio.open_connection(host, port)
    outgoing.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    sending = asyncio.create_task(_send(outgoing, case))
    try:
        if case.leaves:
            await sending
            return True
        while not reader.complete:
            data = await incoming.read(65_536)
            if not data:
                return True
            reader.feed(data)
        return False
    except ConnectionError:
        return True
    finally:
        sending.cancel()
        with suppress(asyncio.CancelledError, ConnectionError):
            await sending
        outgoing.transport.abort()


async def _send(outgoing: asyncio.StreamWriter, case: Case) -> None:
    piece = case.piece or len(case.wire) or 1
    for start in range(0, len(case.wire), piece):
        outgoing.write(case.wire[start : start + piece])
        await outgoing.drain()
        if case.pause_s:
            await asyncio.sleep(case.pause_s)
            piece = 1
