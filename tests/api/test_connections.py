"""Limits on connections, which keep clients without a key from exhausting a replica's memory and connections."""

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import psutil
import pytest

from tests.support.programs import run, tool
from tests.support.waiting import until
from tidegate_spark.testing import CoordinatorProcess

HEAD = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n"
POST = (
    b"POST /v1/jobs/j:report HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 900\r\n"
)
PER_ADDRESS = 20


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CoordinatorProcess]:
    """Start a coordinator with low limits on connections."""
    with CoordinatorProcess(
        tmp_path_factory.mktemp("guarded"), max_connections_per_address=str(PER_ADDRESS), request_timeout_s="1"
    ) as process:
        yield process


@pytest.fixture
def dial(guarded: CoordinatorProcess) -> Iterator[Callable[..., socket.socket]]:
    """Return a function that opens a connection, which is closed at the end of the test."""
    with ExitStack() as stack:

        def opened(sent: bytes = b"", address: str = "127.0.0.1", room: int = 0) -> socket.socket:
            made = stack.enter_context(socket.socket())
            if room:
                made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
            made.bind((address, 0))
            made.settimeout(60)
            made.connect(("127.0.0.1", guarded.port))
            made.sendall(sent)
            return made

        yield opened
    until(lambda: metric(guarded, "tidegate_connections") == 1, "the coordinator has closed the test's connections")


def metric(process: CoordinatorProcess, name: str) -> float:
    text = httpx.get(f"{process.url}/metrics", timeout=60).raise_for_status().text
    [value] = re.findall(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
    return float(value)


def refused(process: CoordinatorProcess, reason: str) -> float:
    return metric(process, f'tidegate_connections_refused_total{{reason="{reason}"}}')


def answer(connection: socket.socket) -> bytes:
    """Return all that the server sends until it closes the connection."""
    received = b""
    while True:
        try:
            piece = connection.recv(65536)
        except ConnectionResetError:
            return received
        if not piece:
            return received
        received += piece


def sent_until_closed(connection: socket.socket, piece: bytes, most: int, pause_s: float = 0) -> int:
    """Send a piece repeatedly; return the number of bytes sent before the server closed the connection."""
    for sent in range(0, most, len(piece)):
        try:
            connection.sendall(piece)
        except OSError:
            return sent
        time.sleep(pause_s)
    return most


@pytest.mark.parametrize(
    ("head", "status", "reason"),
    [
        (HEAD + b"X: y\r\n" * 100, b"431", "head_too_large"),
        (HEAD + b"X: " + b"y" * 65_536 + b"\r\n", b"431", "head_too_large"),
        (HEAD + b"".join(b"X-%d: %s\r\n" % (n, b"y" * 900) for n in range(80)), b"431", "head_too_large"),
        (b"GET /livez?" + b"y" * 65_536 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n", b"414", "url_too_long"),
    ],
    ids=["headers", "one header", "bytes", "url"],
)
def test_a_head_over_the_limits_is_refused(
    guarded: CoordinatorProcess, dial: Callable[..., socket.socket], head: bytes, status: bytes, reason: str
) -> None:
    before = refused(guarded, reason)
    received_text = answer(dial(head + b"\r\n"))
    assert received_text.startswith(b"HTTP/1.1 " + status + b" ")
    assert b"application/problem+json" in received_text
    assert b'"code": "%s"' % reason.encode() in received_text
    assert refused(guarded, reason) == before + 1


def test_a_head_within_the_limits_is_served(dial: Callable[..., socket.socket]) -> None:
    """The server accepts a head in one piece or in several, on a new or a reused connection."""
    request = HEAD + b"".join(b"X-%d: %s\r\n" % (n, b"y" * 600) for n in range(98)) + b"Connection: close\r\n\r\n"
    assert 58_000 < len(request) < 65_536
    assert answer(dial(request)).startswith(b"HTTP/1.1 200 ")
    pieces = dial(HEAD + b"\r\n")
    first = b""
    while not first.endswith(b"}"):
        first += pieces.recv(4096)
    for begin in range(0, len(request), 7000):
        pieces.sendall(request[begin : begin + 7000])
        time.sleep(0.01)
    assert answer(pieces).startswith(b"HTTP/1.1 200 ")


def test_an_endless_head_takes_no_memory(guarded: CoordinatorProcess, dial: Callable[..., socket.socket]) -> None:
    """The server closes the connection before it has received 30 MB."""
    memory = psutil.Process(guarded.pid).memory_info
    before = memory().rss
    endless = dial(HEAD)
    piece = b"".join(b"X-%d: y\r\n" % n for n in range(10_000))
    assert sent_until_closed(endless, piece, most=150_000_000) < 30_000_000, (
        "the server read more than the buffers of the sockets hold"
    )
    assert memory().rss - before < 20_000_000


CHUNKED = b"POST /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"


@pytest.mark.parametrize("trailer", [b"X: y\r\n", b"y" * 1000], ids=["many", "one"])
def test_endless_trailers_take_no_memory(
    guarded: CoordinatorProcess, dial: Callable[..., socket.socket], trailer: bytes
) -> None:
    """The limits also apply to the trailers of a chunked body."""
    memory = psutil.Process(guarded.pid).memory_info
    before = memory().rss
    endless = dial(CHUNKED + b"X: ")
    assert sent_until_closed(endless, trailer * 50, most=50_000_000) < 20_000_000
    assert memory().rss - before < 20_000_000


def test_a_head_in_pieces_has_the_same_limit(dial: Callable[..., socket.socket]) -> None:
    pieces = dial(HEAD + b"X: " + b"y" * 40_000)
    time.sleep(0.2)
    pieces.sendall(b"y" * 30_000 + b"\r\n\r\n")
    assert answer(pieces).startswith(b"HTTP/1.1 431 ")


def test_endless_pipelined_requests_take_no_memory(
    guarded: CoordinatorProcess, dial: Callable[..., socket.socket]
) -> None:
    """A client that sends requests faster than it gets answers is disconnected, and one that sends few is served."""
    before = refused(guarded, "too_many_pipelined")
    sent = sent_until_closed(dial(), b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 1000, 100_000_000)
    assert sent < 100_000_000
    assert refused(guarded, "too_many_pipelined") == before + 1
    last = HEAD + b"Connection: close\r\n\r\n"
    answers = answer(dial((HEAD + b"\r\n") * 90 + last))
    assert answers.count(b"HTTP/1.1 200") == 91


def test_a_disconnect_after_a_pipelined_request_is_noticed(
    guarded: CoordinatorProcess, dial: Callable[..., socket.socket]
) -> None:
    """The server notices the disconnect even if the client has pipelined another request."""
    httpx.put(
        f"{guarded.url}/v1/jobs/left",
        json={"policy": {"type": "limiting_lag", "lag_ms": 10}},
        headers={"If-None-Match": "*"},
        timeout=60,
    ).raise_for_status()
    poll = b"GET /v1/jobs/left/watermark?at_least=5&timeout_s=200 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    leaving = dial(poll + HEAD + b"\r\n")
    until(lambda: metric(guarded, "tidegate_waiting_clients") == 1, "the client waits")
    leaving.close()
    until(lambda: metric(guarded, "tidegate_waiting_clients") == 0, "no client waits", 30)


@pytest.mark.parametrize(
    "sent",
    [b"", b"GET /li", HEAD, POST + b"\r\n", POST + b"\r\n{", HEAD + b"\r\n" + HEAD],
    ids=["nothing", "a line", "a head", "no body", "a body", "a second head"],
)
def test_an_incomplete_request_times_out(
    guarded: CoordinatorProcess, dial: Callable[..., socket.socket], sent: bytes
) -> None:
    before = refused(guarded, "request_timeout")
    assert b" 408 Request Timeout\r\n" in answer(dial(sent))
    assert refused(guarded, "request_timeout") == before + 1


def test_a_slow_request_times_out(dial: Callable[..., socket.socket]) -> None:
    """Single bytes at intervals do not extend the request timeout."""
    assert sent_until_closed(dial(HEAD), b"X: y\r\n", most=1000, pause_s=0.2) < 1000
    assert sent_until_closed(dial(), b"\r\n", most=500, pause_s=0.2) < 500


def test_a_long_poll_outlasts_the_request_timeout(guarded: CoordinatorProcess) -> None:
    """The request timeout limits how long the client sends, not how long the coordinator takes to answer."""
    with httpx.Client(base_url=guarded.url, timeout=60) as http:
        config = {"policy": {"type": "limiting_lag", "lag_ms": 10}}
        http.put("/v1/jobs/j", json=config, headers={"If-None-Match": "*"}).raise_for_status()
        waited = http.get("/v1/jobs/j/watermark", params={"at_least": 5, "timeout_s": 3})
        assert (waited.status_code, waited.json()["reached"]) == (200, False)


def test_an_unread_answer_times_out(guarded: CoordinatorProcess, dial: Callable[..., socket.socket]) -> None:
    before = refused(guarded, "response_timeout")
    dial(b"GET /v1/openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 90)
    until(lambda: refused(guarded, "response_timeout") == before + 1, "the connection is closed")


def test_an_unread_answer_takes_little_memory_of_the_kernel(tmp_path: Path) -> None:
    """The kernel does not take megabytes for each client that does not read, and its timeout ends the connection."""
    with CoordinatorProcess(tmp_path) as patient, socket.socket() as unread:
        unread.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        unread.connect(("127.0.0.1", patient.port))
        unread.sendall(b"GET /v1/openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 90)
        place = f"127.0.0.1:{unread.getsockname()[1]}"

        def queued() -> int:
            """Return the number of bytes that the coordinator has written and the client has no room for."""
            [line] = run(tool("ss", "iproute2"), "-tnH", "dst", place).splitlines()
            return int(line.split()[2])

        until(lambda: queued() > 0, "the client has no room for more")
        before, size = -1, queued()
        while size != before:  # until the kernel takes no more bytes
            time.sleep(1)
            before, size = size, queued()
        assert size < 256 * 1024


def test_an_unread_event_stream_ends(guarded: CoordinatorProcess, dial: Callable[..., socket.socket]) -> None:
    """The timeout also applies if the buffers have room for all events, so that no call waits for the client."""
    with httpx.Client(base_url=guarded.url, timeout=60) as http:
        config = {"policy": {"type": "limiting_lag", "lag_ms": 10}}
        http.put("/v1/jobs/unread", json=config, headers={"If-None-Match": "*"}).raise_for_status()
        before = refused(guarded, "response_timeout")
        unread = dial(b"GET /v1/jobs/unread/watermark:watch HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", room=2048)
        assert unread.recv(12) == b"HTTP/1.1 200"
        event_times = iter(range(1000, 10_000_000, 1000))

        def ended() -> bool:
            for _ in range(20):
                report = {"substreams": ["a"], "max_event_times": [next(event_times)]}
                http.post("/v1/jobs/unread:report", json=report).raise_for_status()
            return refused(guarded, "response_timeout") == before + 1

        until(ended, "the stream has ended")
        assert metric(guarded, "tidegate_waiting_clients") == 0


def test_a_client_that_stops_sending_is_answered(
    guarded: CoordinatorProcess, dial: Callable[..., socket.socket]
) -> None:
    """A client may close its side of the connection after its requests, also while it waits."""
    config = {"policy": {"type": "limiting_lag", "lag_ms": 10}}
    httpx.put(f"{guarded.url}/v1/jobs/half", json=config, headers={"If-None-Match": "*"}, timeout=60).raise_for_status()
    poll = b"GET /v1/jobs/half/watermark?at_least=5&timeout_s=4 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    for sent, statuses in [
        (HEAD + b"\r\n", [b"200"]),
        ((HEAD + b"\r\n") * 3, [b"200"] * 3),
        (poll + HEAD + b"\r\n" + HEAD, [b"102", b"200", b"200"]),
        (HEAD + b"\r\n" + POST + b"\r\n{", [b"200"]),
        (poll.replace(b"HTTP/1.1", b"HTTP/1.0"), [b"200"]),
        (HEAD, []),
        (POST + b"\r\n{", []),
        (b"", []),
    ]:
        half = dial(sent)
        half.shutdown(socket.SHUT_WR)
        assert re.findall(rb"HTTP/1.1 (\d+)", answer(half)) == statuses, sent
    idle = dial(HEAD + b"\r\n")
    while not idle.recv(4096).endswith(b"}"):
        pass
    idle.shutdown(socket.SHUT_WR)
    assert idle.recv(4096) == b""


def test_connections_per_address_are_limited(guarded: CoordinatorProcess, dial: Callable[..., socket.socket]) -> None:
    """Connections over the limit per address are refused, and the log names the limit."""
    for _ in range(PER_ADDRESS):
        dial(address="127.0.0.2")
    over = answer(dial(address="127.0.0.2"))
    assert over.startswith(b"HTTP/1.1 503 ")
    assert b"Retry-After" in over or b"retry-after" in over
    assert b'"code": "too_many_from_address"' in over
    assert httpx.get(f"{guarded.url}/livez", timeout=60).status_code == 200
    assert refused(guarded, "too_many_from_address") == 1
    log = guarded.data_dir / "coordinator.log"
    line = "over TIDEGATE_MAX_CONNECTIONS_PER_ADDRESS (1 from 127.0.0.2)"
    until(lambda: line in log.read_text(), "the log names the limit")


def test_a_trusted_proxy_has_no_limit_of_its_own(tmp_path: Path) -> None:
    """The limit per address does not apply to a proxy, because all its clients share one address."""
    proxied = CoordinatorProcess(tmp_path, max_connections_per_address="1", trusted_proxies="10.0.0.0/8, 127.0.0.1")
    with proxied as process, ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(socket.create_connection(("127.0.0.1", process.port)))
        assert httpx.get(f"{process.url}/livez", timeout=60).status_code == 200


def test_a_low_limit_on_open_files_limits_connections(tmp_path: Path) -> None:
    """The coordinator lowers its limit on connections to the limit on open files, and logs it."""
    command = f"ulimit -n 300; exec {sys.executable} -m tidegate serve --stop-with-stdin"
    environment = os.environ | {"TIDEGATE_DATA_DIR": str(tmp_path), "TIDEGATE_PORT": "0"}
    with (
        open(tmp_path / "log", "w") as log,
        subprocess.Popen(
            ["/bin/sh", "-c", command], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
        ) as process,
        ExitStack() as stack,
    ):
        assert process.stdin is not None and process.stdout is not None
        stack.callback(process.stdin.close)
        serving = re.search(rb"http://127.0.0.1:(\d+)", process.stdout.readline())
        assert serving is not None
        port = int(serving.group(1))
        assert "at most 44 connections, not TIDEGATE_MAX_CONNECTIONS=12000" in (tmp_path / "log").read_text()
        for n in range(100):
            silent = stack.enter_context(socket.socket())
            silent.bind((f"127.0.1.{n + 1}", 0))
            silent.connect(("127.0.0.1", port))
        full = httpx.get(f"http://127.0.0.1:{port}/livez", timeout=60)
        assert (full.status_code, full.json()["code"]) == (503, "too_many_connections")
        until(lambda: "over TIDEGATE_MAX_CONNECTIONS (" in (tmp_path / "log").read_text(), "the log names the limit")
