"""Turns: a tenant with many connections or expensive calls does not delay the calls of the other tenants."""

# ruff: noqa: SLF001  # the tests check that no state is left

import asyncio
import itertools
import re
import select
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path

import httpx
import pytest
import uvicorn
from hypothesis import given, settings
from hypothesis import strategies as st
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
from tidegate.http.call import call_of
from tidegate.http.connection import Connection, Connections
from tidegate.http.guard import BodyMemory, Guard
from tidegate.http.turns import CALL_BYTES, LIMITED_S, InTurn, Tenant, Turn, Turns, tenant_of
from tidegate.runtime.metrics import Metrics
from tidegate.settings import Settings
from tidegate_spark.testing import CoordinatorProcess

FLOOD, QUIET, THIRD = ("job", "flood"), ("job", "quiet"), ("job", "third")
ACTIVE = 4


class Calls:
    """Calls that record when they start, and end when the test ends them.

    Time passes only when the test sets ``now``, and a call costs what the test charges.
    """

    def __init__(self, max_active: int, max_queued: int = 4) -> None:
        self.now = 0.0
        self.turns, self.started = Turns(max_active, max_queued, lambda: self.now), list[Tenant]()
        self._open: list[tuple[Tenant, Turn]] = []

    async def call(self, tenant: Tenant, size: int = 0) -> None:
        turn = self.turns.begin(tenant, size) or await self.turns.wait(tenant, size)
        self.started.append(tenant)
        self._open.append((tenant, turn))

    async def make(self, *tenants: Tenant, size: int = 0) -> list["asyncio.Task[None]"]:
        """Make calls, and return when no call starts any more."""
        made = [asyncio.create_task(self.call(tenant, size)) for tenant in tenants]
        await passes(len(made) + 4)
        return made

    async def end(self, tenant: Tenant, cost_s: float = 0.0) -> list[Tenant]:
        """End a call, and return the tenants whose calls start in the next passes of the event loop."""
        before = len(self.started)
        self.end_now(tenant, cost_s)
        await passes(self.turns.queued + 4)
        return self.started[before:]

    async def end_oldest(self, cost_s: float) -> list[Tenant]:
        """End the oldest call of all tenants, and return the tenants whose calls start then."""
        return await self.end(self._open[0][0], cost_s)

    def end_now(self, tenant: Tenant, cost_s: float = 0.0) -> None:
        """End the oldest call of a tenant, twice: the second time has no effect."""
        turn = self.take(tenant)
        turn.charge(cost_s)
        turn.end()
        turn.end()

    def take(self, tenant: Tenant) -> Turn:
        """Return the turn of the oldest call of a tenant, which the test ends."""
        place = next(number for number, (each, _) in enumerate(self._open) if each == tenant)
        return self._open.pop(place)[1]

    def end_all(self) -> None:
        while self._open:
            self.end_now(self._open[0][0])


async def passes(number: int) -> None:
    """Wait for passes of the event loop."""
    for _ in range(number):
        await asyncio.sleep(0)


@asynccontextmanager
async def limited(max_queued: int = 4) -> AsyncIterator[Calls]:
    """Yield turns whose bounds apply: ``ACTIVE`` calls of the flood and one of the quiet tenant are in progress.

    After the test and the end of all calls, no state is left.
    """
    calls = Calls(ACTIVE, max_queued)
    await calls.make(*[FLOOD] * ACTIVE, QUIET)
    assert calls.started == [*[FLOOD] * ACTIVE, QUIET]
    yield calls
    async with asyncio.timeout(60):
        while calls.turns._of:
            calls.end_all()
            await asyncio.sleep(0)
    assert (calls.turns.queued, calls.turns._active) == (0, 0)
    assert not calls.turns._order


def test_a_tenant_alone_has_no_limit() -> None:
    async def run() -> None:
        calls = Calls(ACTIVE)
        for _ in range(20):
            await calls.call(FLOOD)
        assert calls.turns.queued == 0

    asyncio.run(run())


def test_tenants_take_turns() -> None:
    """A short queue is not behind a long one, and each queue keeps its order."""

    async def run() -> None:
        async with limited() as calls:
            await calls.make(*[FLOOD] * 4, QUIET, QUIET)
            assert len(calls.started) == ACTIVE + 1
            assert await calls.end(FLOOD) == []  # ACTIVE calls are still in progress
            order = [tenant for _ in range(4) for tenant in await calls.end(FLOOD, 1)]
            assert sorted(order[:4]) == [FLOOD, FLOOD, QUIET, QUIET], order

    asyncio.run(run())


def test_the_first_call_of_a_tenant_does_not_wait() -> None:
    """Slow calls of other tenants cannot block a tenant that has no call in progress."""

    async def run() -> None:
        async with limited() as calls:
            await calls.make(FLOOD, THIRD, THIRD)
            assert calls.started[ACTIVE + 1 :] == [THIRD]
            assert await calls.end(THIRD, 1) == [THIRD]  # the next call of this tenant is again its only one

    asyncio.run(run())


def test_a_new_tenant_starts_in_the_pass_in_which_it_arrives() -> None:
    """Long queues, and a call that has just started, do not delay it."""

    async def run() -> None:
        async with limited(100) as calls:
            await calls.make(*[FLOOD] * 50, *[QUIET] * 50)
            for _ in range(10):
                await calls.end(FLOOD, 1)
                await calls.end(QUIET, 1)
            calls.end_now(FLOOD, 1)
            turn = calls.turns.begin(THIRD)
            assert turn is not None
            turn.end()

    asyncio.run(run())


def test_the_limit_ends() -> None:
    """The next call that ends starts all calls in the queues."""

    async def run() -> None:
        async with limited() as calls:
            await calls.make(*[FLOOD] * 4)
            calls.now += LIMITED_S
            assert await calls.end(FLOOD) == [FLOOD] * 4

    asyncio.run(run())


def test_cancelled_calls_keep_no_turn() -> None:
    """A call may be cancelled in the queue, or after its turn has begun and before it runs."""

    async def run() -> None:
        async with limited() as calls:
            queued, starting, both, _ = await calls.make(FLOOD, FLOOD, FLOOD, FLOOD)
            queued.cancel()
            await passes(2)
            assert calls.turns.queued == 3
            calls.end_now(QUIET)
            calls.end_now(FLOOD)
            await asyncio.sleep(0)  # begins the turn of `starting`
            assert not starting.done()
            starting.cancel()
            both.cancel()  # in the pass in which its turn would begin
            await passes(6)
            assert calls.started[ACTIVE + 1 :] == [FLOOD]  # the last one
            assert calls.turns.queued == 0
            assert (queued.cancelled(), starting.cancelled(), both.cancelled()) == (True, True, True)

    asyncio.run(run())


def test_a_queue_that_ends_by_cancellations_leaves_no_state() -> None:
    """Clients that disconnect before their turn must not keep the bounds or the costs."""

    async def run() -> None:
        async with limited() as calls:
            tasks = await calls.make(*[FLOOD] * 4, *[QUIET] * 4)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert (calls.turns.queued, calls.turns._order) == (0, [])

    asyncio.run(run())


@pytest.mark.parametrize("outcome", ["ends", "fails", "is cancelled while it runs", "is cancelled in the queue"])
def test_a_call_gives_its_turn_back(outcome: str) -> None:
    """Exceptions of the application and clients that disconnect must not keep a place."""

    async def run() -> None:
        async with limited() as calls:
            reached_app, may_end = asyncio.Event(), asyncio.Event()

            async def app() -> None:
                reached_app.set()
                await may_end.wait()
                if outcome == "fails":
                    raise ValueError("a defect")

            scope: Scope = {}
            serving = asyncio.create_task(calls.turns.serve(FLOOD, scope, 0, app))
            await asyncio.sleep(0)
            assert calls.turns.queued == 1
            if outcome == "is cancelled in the queue":
                serving.cancel()
            else:
                await calls.end(FLOOD)
                await calls.end(FLOOD)
                await reached_app.wait()
                may_end.set()
                if outcome == "is cancelled while it runs":
                    serving.cancel()
            (result,) = await asyncio.gather(serving, return_exceptions=True)
            assert type(result) is {"ends": type(None), "fails": ValueError}.get(outcome, asyncio.CancelledError)
            assert calls.turns.queued == 0

    asyncio.run(run())


def test_the_tenant_whose_calls_have_cost_least_is_next() -> None:
    """A call of the flood costs as much as four calls of the other tenant."""

    async def run() -> None:
        async with limited(100) as calls:
            await calls.make(*[FLOOD] * 20, *[QUIET] * 40)
            before, in_progress, cost_s = len(calls.started), [*[FLOOD] * ACTIVE, QUIET], {FLOOD: 4, QUIET: 1}
            while calls.turns.queued > 20:
                tenant = in_progress.pop(0)
                in_progress += await calls.end(tenant, cost_s[tenant])
            started = calls.started[before:]
            assert 3 <= started.count(QUIET) / started.count(FLOOD) <= 5, started

    asyncio.run(run())


def test_a_pause_saves_no_credit() -> None:
    """A tenant returns after the others have used 100 s. It takes turns with them, and does not use 100 s at once."""

    async def run() -> None:
        async with limited(1000) as calls:
            await calls.make(*[FLOOD] * 300, *[THIRD] * 100)
            await calls.end(QUIET)
            for _ in range(100):
                await calls.end_oldest(1)
            before = len(calls.started)
            await calls.make(*[QUIET] * 40)
            for _ in range(40):
                await calls.end_oldest(1)
            started = calls.started[before:]
            assert 10 <= started.count(QUIET) <= 20, started

    asyncio.run(run())


def test_a_tenant_that_has_used_more_than_its_share_waits() -> None:
    """A tenant that sends one expensive call after the other does not always start at once."""

    async def run() -> None:
        async with limited(100) as calls:
            await calls.make(*[FLOOD] * 50)
            await calls.end(FLOOD, 1)
            await calls.end(QUIET, 10)
            assert calls.turns.begin(QUIET) is None
            waiting = asyncio.create_task(calls.turns.wait(QUIET))
            for _ in range(15):
                await calls.end(FLOOD, 1)
            assert waiting.done()
            waiting.result().end()

    asyncio.run(run())


def test_few_large_calls_of_a_tenant_are_in_progress() -> None:
    """The bodies of the calls in progress count. The first call of another tenant starts at once."""

    async def run() -> None:
        async with limited() as calls:
            for _ in range(ACTIVE):
                await calls.end(FLOOD)
            large = await calls.make(FLOOD, FLOOD, FLOOD, size=ACTIVE * CALL_BYTES)
            assert calls.started[ACTIVE + 1 :] == [FLOOD]
            await calls.make(THIRD, size=ACTIVE * CALL_BYTES)
            assert calls.started[-1] == THIRD
            assert await calls.end(FLOOD) == [FLOOD]
            assert await calls.end(FLOOD) == [FLOOD]
            await asyncio.gather(*large)

    asyncio.run(run())


@pytest.mark.parametrize("waits", [False, True])
def test_few_calls_start_in_a_pass_of_the_event_loop(waits: bool) -> None:
    """Calls that end at once, such as refusals, do not keep the event loop from reading the sockets of others."""

    async def run() -> None:
        async with limited(1000) as calls:
            calls.end_all()
            await calls.make(QUIET)
            started = list[int]()

            async def answer() -> None:
                started.append(1)
                if waits:
                    await asyncio.sleep(0)

            served = [asyncio.create_task(calls.turns.serve(THIRD, {}, 0, answer)) for _ in range(50)]
            most = 0
            while not all(task.done() for task in served):
                before = len(started)
                await asyncio.sleep(0)
                most = max(most, len(started) - before)
            assert most <= (ACTIVE if waits else 2)  # before the first call ends, it could be one that waits
            assert (most > 2) is waits

    asyncio.run(run())


TENANTS = [("job", str(number)) for number in range(4)]


@settings(deadline=None)
@given(
    costs=st.lists(st.sampled_from([1, 2, 5, 20]), min_size=4, max_size=4),
    arrivals=st.lists(st.tuples(st.integers(0, 150), st.sampled_from(TENANTS), st.integers(1, 40)), max_size=12),
)
def test_no_waiting_tenant_gets_more_than_its_share(costs: list[int], arrivals: list[tuple[int, Tenant, int]]) -> None:
    """While two tenants wait, what their calls cost differs by one call of each at most, and all calls end.

    Args:
        costs: What a call costs, for each tenant.
        arrivals: Passes of the event loop in which calls of a tenant arrive, and their number.
    """
    cost_of = dict(zip(TENANTS, costs, strict=True))

    async def run() -> None:
        async with limited(1000) as calls:
            turns, spent = calls.turns, dict.fromkeys(TENANTS, 0)
            turns._max_active = 1000  # only the costs decide
            both_wait: dict[tuple[Tenant, Tenant], tuple[int, int]] = {}
            served = list["asyncio.Task[None]"]()

            async def answer(tenant: Tenant, scope: Scope) -> None:
                turns.charge(tenant, cost_of[tenant])
                spent[tenant] += cost_of[tenant]

            def serve(tenant: Tenant) -> None:
                scope: Scope = {}
                call = turns.serve(tenant, scope, CALL_BYTES + 1, lambda: answer(tenant, scope))
                served.append(asyncio.create_task(call))

            last, at = max((time for time, _, _ in arrivals), default=0), 0
            while at <= last or not all(task.done() for task in served):
                for _, tenant, number in (each for each in arrivals if each[0] == at):
                    for _ in range(number):
                        serve(tenant)
                await asyncio.sleep(0)
                waiting = [tenant for tenant in TENANTS if (known := turns._of.get(tenant)) and known.queue]
                pairs = set(itertools.combinations(waiting, 2))
                both_wait = {pair: since for pair, since in both_wait.items() if pair in pairs}
                for one, other in pairs:
                    since = both_wait.setdefault((one, other), (spent[one], spent[other]))
                    difference = abs((spent[one] - since[0]) - (spent[other] - since[1]))
                    assert difference <= 2 * (cost_of[one] + cost_of[other])
                at += 1
            await asyncio.gather(*served)

    asyncio.run(run())


def test_the_number_of_queued_calls_is_read_while_it_changes() -> None:
    """The thread of /metrics reads the number while tenants join and leave the queues."""

    async def run() -> None:
        calls, errors, ended = Calls(1, 10), list[Exception](), threading.Event()
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


def test_tenants_are_keys_or_jobs_or_addresses() -> None:
    """The caller cannot choose its tenant if the service has keys."""
    _, key = new_key(name="team", role=Role.ADMIN, prefix="", created="2026-01-01T00:00:00Z")

    def found(path: str, caller: Caller | None, address: str = "10.0.0.1") -> Tenant:
        scope: Scope = {"path": path, "client": (address, 1)}
        call_of(scope).caller = caller
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
        calls, statuses = Calls(1), list[int]()
        turns = calls.turns
        guard = Guard(InTurn(Starlette(), turns), 1000, BodyMemory(1000), Keyring(path), KeyUsage(), turns, False)
        scope = {"type": "http", "path": "/v1/jobs", "method": "GET", "client": ("10.0.0.1", 1), "query_string": b""}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        async def receive() -> Message:
            return {"type": "http.request", "body": b""}

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
        call_of(scope).caller = Caller(None)
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
