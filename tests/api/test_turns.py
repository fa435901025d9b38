"""Turns: a tenant with many connections does not delay the calls of the other tenants."""

import asyncio
import re
import select
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path

import httpx
import pytest
import uvicorn
from redis import Redis
from starlette.applications import Starlette
from starlette.types import Message, Receive, Scope, Send
from uvicorn.server import ServerState

from tests.support.api import create, problem
from tests.support.events import watching
from tests.support.waiting import until
from tidegate.auth import keyring
from tidegate.auth.callers import Caller
from tidegate.auth.keyring import Keyring
from tidegate.auth.keys import new_key
from tidegate.auth.roles import Role
from tidegate.auth.usage import KeyUsage
from tidegate.runtime.metrics import Metrics
from tidegate.settings import Settings
from tidegate.web.body_memory import BodyMemory
from tidegate.web.connections import Connections
from tidegate.web.guard import Guard
from tidegate.web.http_protocol import Connection
from tidegate.web.turns import InTurn, Tenant, Turn, Turns, tenant_of
from tidegate_spark.testing import CoordinatorProcess

FLOOD, QUIET, THIRD = ("job", "flood"), ("job", "quiet"), ("job", "third")
ACTIVE = 4


class Calls:
    """Calls that record when they start, and end when the test ends them."""

    def __init__(self, turns: Turns) -> None:
        self.turns, self.started = turns, list[Tenant]()
        self._open: list[tuple[Tenant, Turn]] = []

    async def call(self, tenant: Tenant) -> None:
        turn = self.turns.begin(tenant) or await self.turns.wait(tenant)
        self.started.append(tenant)
        self._open.append((tenant, turn))

    async def make(self, *tenants: Tenant) -> list["asyncio.Task[None]"]:
        made = [asyncio.create_task(self.call(tenant)) for tenant in tenants]
        await asyncio.sleep(0)
        return made

    async def end(self, tenant: Tenant) -> list[Tenant]:
        """End a call, and return the tenants whose calls start then."""
        before = len(self.started)
        self.end_now(tenant)
        await asyncio.sleep(0)
        return self.started[before:]

    def end_now(self, tenant: Tenant) -> None:
        """End the oldest call of a tenant, twice: the second time has no effect."""
        place = next(number for number, (each, _) in enumerate(self._open) if each == tenant)
        _, turn = self._open.pop(place)
        turn.end()
        turn.end()


@asynccontextmanager
async def limited() -> AsyncIterator[Calls]:
    """Yield turns whose limit applies: ``ACTIVE`` calls of the flood and one of the quiet tenant are in progress."""
    calls = Calls(Turns(ACTIVE, 4))
    await calls.make(*[FLOOD] * ACTIVE, QUIET)
    assert calls.started == [*[FLOOD] * ACTIVE, QUIET]
    yield calls


def test_a_tenant_alone_has_no_limit() -> None:
    async def run() -> None:
        calls = Calls(Turns(ACTIVE, 4))
        await calls.make(*[FLOOD] * 20)
        assert len(calls.started) == 20

    asyncio.run(run())


def test_tenants_take_turns() -> None:
    """A short queue is not behind a long one, and each queue keeps its order."""

    async def run() -> None:
        async with limited() as calls:
            await calls.make(*[FLOOD] * 4, QUIET, QUIET)
            assert len(calls.started) == ACTIVE + 1
            assert await calls.end(FLOOD) == []  # ACTIVE calls are still in progress
            order = [tenant for _ in range(6) for tenant in await calls.end(FLOOD)]
            assert order == [FLOOD, QUIET, FLOOD, QUIET, FLOOD, FLOOD]
            assert calls.turns.queued == 0

    asyncio.run(run())


def test_the_first_call_of_a_tenant_does_not_wait() -> None:
    """Slow calls of other tenants cannot block a tenant that has no call in progress."""

    async def run() -> None:
        async with limited() as calls:
            await calls.make(FLOOD, THIRD, THIRD)
            assert calls.started[ACTIVE + 1 :] == [THIRD]
            assert await calls.end(THIRD) == [THIRD]  # the next call of this tenant is again its only one

    asyncio.run(run())


def test_the_limit_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next call that ends starts all calls in the queues."""

    async def run() -> None:
        async with limited() as calls:
            await calls.make(*[FLOOD] * 4)
            now = time.monotonic()
            monkeypatch.setattr(time, "monotonic", lambda: now + 11)
            assert await calls.end(FLOOD) == [FLOOD] * 4

    asyncio.run(run())


def test_cancelled_calls_keep_no_turn() -> None:
    """A call may be cancelled in the queue, or after its turn has begun and before it runs."""

    async def run() -> None:
        async with limited() as calls:
            queued, starting, _ = await calls.make(FLOOD, FLOOD, FLOOD)
            queued.cancel()
            await asyncio.sleep(0)
            assert calls.turns.queued == 2
            calls.end_now(QUIET)
            calls.end_now(FLOOD)  # begins the turn of `starting`
            starting.cancel()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert calls.started[ACTIVE + 1 :] == [FLOOD]  # the last one
            assert calls.turns.queued == 0

    asyncio.run(run())


def test_tenants_are_keys_or_jobs_or_addresses() -> None:
    """The caller cannot choose its tenant if the service has keys."""
    _, key = new_key(name="team", role=Role.ADMIN, prefix="", created="2026-01-01T00:00:00Z")

    def found(path: str, caller: Caller | None, address: str = "10.0.0.1") -> Tenant:
        scope: Scope = {"path": path, "client": (address, 1)} | ({} if caller is None else {"caller": caller})
        return tenant_of(scope)

    assert found("/v1/jobs/flights:report", Caller(key)) == ("key", "team")
    assert found("/v1/jobs", Caller(key)) == ("key", "team")
    for path in ("/v1/jobs/flights", "/v1/jobs/flights:report", "/v1/jobs/flights/queries/q/batches/1:commit"):
        assert found(path, Caller(None)) == ("job", "flights")
    assert found("/v1/jobs", Caller(None)) == ("address", "10.0.0.1")
    assert found("/jobs/flights", None) == found("/jobs/other", None) == ("address", "10.0.0.1")
    assert found("/login", None, "2001:db8::1") == found("/login", None, "2001:db8::2")
    assert tenant_of({"path": "/login", "client": None}) == ("address", "")  # the peer of a Unix socket


def test_refused_calls_take_turns(tmp_path: Path) -> None:
    """A client without a valid key cannot delay other clients with calls that are refused."""
    path = tmp_path / "keys.json"
    keyring.create(path, "team", Role.ADMIN, "")

    async def run() -> None:
        turns, statuses = Turns(1, 4), list[int]()
        guard = Guard(InTurn(Starlette(), turns), 1000, BodyMemory(1000), Keyring(path), KeyUsage(), turns, False)
        scope = {"type": "http", "path": "/v1/jobs", "method": "GET", "client": ("10.0.0.1", 1), "query_string": b""}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        async def receive() -> Message:
            return {"type": "http.request", "body": b""}

        calls = Calls(turns)
        await calls.make(FLOOD, ("address", "10.0.0.1"))
        refused = asyncio.create_task(guard({**scope, "headers": [(b"authorization", b"Bearer wrong")]}, receive, send))
        await asyncio.sleep(0)
        assert (turns.queued, statuses) == (1, [])
        await calls.end(("address", "10.0.0.1"))
        await refused
        assert (turns.queued, statuses) == (0, [401])

    asyncio.run(run())


class SlowApp:
    """An application whose calls end when the test ends them."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self._ends: list[asyncio.Event] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert (await receive())["body"] == b"{}"
        self.started.append(scope["path"])
        self._ends.append(asyncio.Event())
        await self._ends[-1].wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})

    def end_oldest(self) -> None:
        """End the oldest call in progress."""
        self._ends.pop(0).set()


Sockets = list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]


def request(path: str, body: bytes = b"{}") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    return f"{head}\r\n\r\n".encode() + body


@asynccontextmanager
async def served(app: SlowApp, max_active: int, number: int) -> AsyncIterator[tuple[Sockets, Callable[[], int]]]:
    """Serve an application in turn. Yield ``number`` connections, and a function that counts queued calls."""
    turns = Turns(max_active, 1000)
    in_turn = InTurn(app, turns)

    async def without_keys(scope: Scope, receive: Receive, send: Send) -> None:
        scope["caller"] = Caller(None)
        await in_turn(scope, receive, send)

    config, connections = uvicorn.Config(without_keys), Connections(Settings(), 1000, Metrics())
    config.load()
    protocol = partial(Connection, connections, config=config, server_state=ServerState(), app_state={})
    server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    sockets = [await asyncio.open_connection("127.0.0.1", port) for _ in range(number)]
    try:
        yield sockets, lambda: turns.queued
    finally:
        for _, writer in sockets:
            writer.close()
        server.close()


async def reached(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


def test_a_quiet_tenant_is_served_between_the_calls_of_a_flood() -> None:
    """Of the next six calls that start, three are quiet, although 37 calls of the flood arrived before them."""
    connections, active = 40, 4
    flood, quiet = "/v1/jobs/flood:report", "/v1/jobs/quiet:report"

    async def run() -> None:
        app = SlowApp()
        async with served(app, active, connections + 4) as (sockets, queued):
            flooding, calling = sockets[:connections], sockets[connections:]
            for _, writer in flooding:
                writer.write(request(flood))
            await reached(lambda: len(app.started) == connections)
            calling[0][1].write(request(quiet))  # from now on, the limit applies
            await reached(lambda: app.started[connections:] == [quiet])
            for reader, writer in flooding:
                app.end_oldest()
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
                writer.write(request(flood))
            await reached(lambda: len(app.started) + queued() == 2 * connections + 1)
            assert queued() >= connections - active
            before, expected = len(app.started), queued() + 3
            for _, writer in calling[1:]:
                writer.write(request(quiet))
            await reached(lambda: queued() == expected)
            for ended in range(6):
                app.end_oldest()
                await reached(lambda ended=ended: len(app.started) > before + ended)  # type: ignore[misc]
            assert sorted(app.started[before:]) == [flood] * 3 + [quiet] * 3

    asyncio.run(run())


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CoordinatorProcess]:
    """Start a coordinator whose limit applies to the second call in progress."""
    with CoordinatorProcess(
        tmp_path_factory.mktemp("narrow"), max_active_calls="1", max_queued_calls="2", sweep_interval_ms="60000"
    ) as process:
        yield process


@pytest.fixture
def http(narrow: CoordinatorProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=narrow.url, timeout=60) as client:
        yield client


class Paused:
    """A coordinator whose Redis executes no functions. Reports arrive in order, and wait."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http
        self.sent: list[socket.socket] = []

    def report(self, job: str) -> None:
        """Send a report, and return when the coordinator has read it."""
        connection = socket.create_connection((self._http.base_url.host, self._http.base_url.port or 80), timeout=60)
        self.sent.append(connection)
        connection.sendall(request(f"/v1/jobs/{job}:report", b'{"substreams": ["s"], "max_event_times": [10]}'))
        for _ in range(5):  # the coordinator reads all sockets with data between two answers
            assert self._http.get("/livez").status_code == 200

    def has_answers(self) -> bool:
        return bool(select.select(self.sent, [], [], 0)[0])


@contextmanager
def paused(process: CoordinatorProcess, http: httpx.Client) -> Iterator[Paused]:
    """Let Redis delay all functions during the block. Afterwards, all reports must succeed."""
    with Redis(unix_socket_path=str(process.data_dir / "valkey.sock")) as redis, ExitStack() as stack:
        redis.client_pause(60_000, all=False)
        waiting = Paused(http)
        try:
            yield waiting
        finally:
            redis.client_unpause()
        for connection in waiting.sent:
            stack.enter_context(connection)
            assert connection.recv(12) == b"HTTP/1.1 200"


def test_a_full_queue_refuses_calls(narrow: CoordinatorProcess, http: httpx.Client) -> None:
    """The refusal does not wait for Redis. Health checks do not wait either, and the queued calls succeed later."""
    for job in ("flood", "quiet"):
        create(http, job)
    with paused(narrow, http) as waiting:
        for job in ("flood", "quiet", "flood", "flood"):  # two in progress, two in the queue
            waiting.report(job)
        refused = http.post("/v1/jobs/flood:report", json={"substreams": ["s"], "max_event_times": [10]})
        document = problem(refused, 429, "too_many_queued")
        assert document["limit"] == 2
        assert "job flood" in document["detail"]
        assert int(refused.headers["Retry-After"]) > 0
        assert not waiting.has_answers()
    assert re.search(r"^tidegate_queued_calls 0.0$", http.get("/metrics").text, re.MULTILINE)


def test_waiting_clients_keep_no_turn(narrow: CoordinatorProcess, http: httpx.Client) -> None:
    """A report of the same job is applied while a long poll waits for it and an event stream is open."""
    for job in ("awaited", "other"):
        create(http, job)
    with paused(narrow, http) as waiting:
        waiting.report("awaited")
        waiting.report("other")  # from now on, the limit applies

    def waiting_clients(number: int) -> bool:
        return f"\ntidegate_waiting_clients {number}.0\n" in http.get("/metrics").text

    with ThreadPoolExecutor(1) as pool, watching(f"{narrow.url}/v1/jobs/awaited") as events:
        events.take(1)
        poll = pool.submit(
            httpx.get,
            f"{narrow.url}/v1/jobs/awaited/watermark",
            params={"at_least": 1000, "timeout_s": 20},
            timeout=60,
        )
        until(lambda: waiting_clients(2), "the long poll waits")
        http.post("/v1/jobs/awaited:report", json={"substreams": ["s"], "max_event_times": [1010]}).raise_for_status()
        assert poll.result().json()["reached"]


def test_the_number_of_queued_calls_is_read_while_it_changes() -> None:
    """The thread of /metrics reads the number while tenants join and leave the queues. The scrape was cut off."""

    async def run() -> None:
        calls, errors, ended = Calls(Turns(1, 10)), list[Exception](), threading.Event()
        tenants = [("job", str(number)) for number in range(200)]

        def read() -> None:
            try:
                while not ended.is_set():
                    assert calls.turns.queued >= 0
            except Exception as error:  # noqa: BLE001  # the test shows it
                errors.append(error)

        reader = threading.Thread(target=read)
        reader.start()
        try:
            await calls.make(FLOOD, *tenants)
            for _ in range(20):
                waiting = await calls.make(*tenants)
                for task in waiting:
                    task.cancel()
                await asyncio.gather(*waiting, return_exceptions=True)
        finally:
            ended.set()
            reader.join()
        assert errors == []
        assert calls.turns.queued == 0

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        asyncio.run(run())
    finally:
        sys.setswitchinterval(interval)
