"""Cases by seed and number: valid requests, mutations of valid requests, and bytes that are not HTTP."""

from collections.abc import Callable
from random import Random

from tests.fuzz import documents
from tests.fuzz.messages import Case, Headers, Request
from tests.fuzz.operations import IDS, JOBS, Operations

SLOW_BYTES = 40
"""Number of bytes that a slow client sends, one per second. It is more than the coordinator waits for."""
METHODS = [b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS", b"TRACE", b"CONNECT", b"PURGE", b"get", b"X" * 300]
PATHS = [
    *(b"/", b"//", b"/v1", b"/v1/", b"/v1/jobs/", b"/v1/jobs/%00", b"/v1/jobs/a%2Fb", b"/v1/jobs/%2e%2e/keys", b"/v1/../livez"),
    *(b"/v1/jobs/\xff", b"/v1/jobs/%ff", b"/v1/jobs/%", b"/v1/jobs/%zz", b"/v1/jobs/a:b:report", b"/v1/jobs/" + b"a" * 129),
    *(b"/v1/jobs/" + b"a" * 30_000, b"/v1/jobs/" + b"a" * 70_000, b"*", b"http://localhost/v1/jobs", b"http://evil/livez"),
    *(b"/static/../../etc/passwd", b"/static/%2e%2e/%2e%2e/etc/passwd", b"/static/", b"/static/style.css", b"/jobs/x%2Fy"),
    *(b"/jobs/fuzzed-0", b"/jobs/%F0%9F%98%80", b"/login", b"/logout", b"/live", b"/login?next=//evil", b"/?sort=x&match=%00"),
    *(b"/v1/openapi.json", b"/docs", b"/v1/jobs;a=b", b"/v1/jobs#x", b"/v1/jobs/fuzzed-0/", b"/v1/jobs?%", b"/metrics?substreams=("),
    *(b"/v1/jobs/fuzzed-0/queries/q/batches/-1", b"/v1/jobs/fuzzed-0/queries/q/batches/" + b"9" * 16),
    *(b"/v1/jobs/fuzzed-0/queries/q/batches/" + b"9" * 5000, b"/v1/jobs/fuzzed-0/queries/q/batches/1e3", b"livez", b""),
]
PARAMETERS = [
    *(b"", b"1", b"-1", b"0", b"1e9", b"9" * 400, b"9" * 5000, b"NaN", b"inf", b"%00", b"%ff%fe", b"true", b"%", b"a" * 3000, b"%F0%9F%98%80"),
    *(b"*" * 200, b"%2A%2A%2Aa", b"1-1", b"0-0", b"9999999999999999-9999999999999999999", b"99999999999999999-0", b"1:a/", b":/", b"-1:q/x"),
    *(b"null", b"[]", b"1&", b"+1", b"1.0", b"0x1", b"%0A", b"%20", b"\xc3\xa4", b"a%2Fb", b"2e308", b"9007199254740992"),
]
NAMES = [
    *(b"x", b"limit", b"after", b"before", b"as_of", b"from_ms", b"kind", b"state", b"sort", b"name", b"query", b"substream"),
    *(b"window_ms", b"target", b"lag_ms", b"at_least", b"timeout_s", b"descending", b"reason", b"substreams", b"%00", b"", b"limit[]"),
]
HEADERS: Headers = [
    *((b"content-type", value) for value in (b"text/plain", b"application/json; charset=utf-16", b"application/x-www-form-urlencoded", b"", b"application/json, text/plain", b"\xff")),
    *((b"content-encoding", value) for value in (b"gzip", b"deflate", b"br", b"identity", b"unknown", b"gzip, gzip")),
    *((b"if-match", value) for value in (b"*", b'"1-1"', b'W/"1-1"', b"1-1", b'"' + b"9" * 5000 + b'-1"', b'"-1--1"', b"", b'"1-1", "1-2"', b"\xff")),
    *((b"if-none-match", value) for value in (b"*", b'"1-1"', b"")),
    *((b"last-event-id", value) for value in (b"0-0", b"1-1", b"x", b"9" * 16 + b"-" + b"9" * 19, b"9" * 30 + b"-1", b"1-", b"\xff", b"", b"1-1\x0b", b"1-" + b"9" * 25)),
    *((b"host", value) for value in (b"evil.example", b"", b"localhost:99999", b"[::1]", b"\xff")),
    *((b"accept", value) for value in (b"text/html", b"application/openmetrics-text; version=1.0.0", b"*/*;q=x", b"\xff" * 9, b"," * 5000)),
    *((b"accept-encoding", value) for value in (b"gzip", b"br;q=1", b"gzip;q=x")),
    *((b"x-request-id", value) for value in (b"a" * 129, b"\xff", b"ok", b"a b", b"")),
    *((b"x-forwarded-for", value) for value in (b"1.2.3.4", b"x", b"1.2.3.4, 5.6.7.8", b"\xff", b"[::1]:1")),
    *((b"x-forwarded-proto", value) for value in (b"https", b"\xff")),
    *((b"traceparent", value) for value in (b"00-0-0-00", b"\xff", b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01")),
    *((b"cookie", value) for value in (b"session=x", b"a=b; " * 1000, b"\xff", b"=;=", b'session="')),
    *((b"expect", value) for value in (b"100-continue", b"x")),
    *((b"upgrade", b"websocket"), (b"connection", b"upgrade"), (b"connection", b"close"), (b"connection", b"x, y")),
    *((b"upgrade", b"h2c"), (b"http2-settings", b"AAAA"), (b"range", b"bytes=0-1,5-"), (b"origin", b"https://evil.example")),
    *((b"sec-fetch-site", b"cross-site"), (b"authorization", b"Basic YTpi"), (b"x" * 60_000, b"y"), (b"x", b"y" * 60_000)),
    *((b"", b"empty"), (b"a b", b"c"), (b"x\x00", b"y"), (b"x", b"\x00"), (b"x", b"a\rb"), (b"x", b"a\nb"), (b"transfer-encoding", b"identity")),
]
FRAMINGS: list[Headers] = [
    *([(b"content-length", value)] for value in (b"-1", b"+5", b"5x", b"0x5", b"", b" 5", b"9" * 30, b"1" * 5000, b"1e3", b"1,1", b"0", b"4194305", b"99999999999")),
    *([(b"transfer-encoding", value)] for value in (b"chunked", b"Chunked", b"chunked, chunked", b"gzip, chunked", b"chunked, gzip", b"identity", b"\x0bchunked", b"xchunked")),
    [(b"content-length", b"5"), (b"content-length", b"6")],
    [(b"content-length", b"5"), (b"transfer-encoding", b"chunked")],
    [(b"transfer-encoding", b"chunked"), (b"content-length", b"5")],
    [(b"transfer-encoding", b"chunked"), (b"transfer-encoding", b"identity")],
    [(b"transfer-encoding ", b"chunked")],
    [(b"content-length\x00", b"3")],
]
CHUNKS = [
    *(b"0\r\n\r\n", b"5\r\nhello\r\n0\r\n\r\n", b"2\r\n{}\r\n0\r\n\r\n", b"FFFFFFFFFFFFFFFF\r\n", b"FFFFFFFFFFFFFFFFFF\r\n", b"-1\r\n", b"x\r\n"),
    *(b"2;" + b"a" * 80_000 + b"\r\n{}\r\n0\r\n\r\n", b"0\r\n" + b"t: v\r\n" * 300 + b"\r\n", b"2\n{}\n0\n\n", b"2\r\n{}0\r\n\r\n"),
    *(b"1\r\n{\r\n1\r\n}\r\n0\r\n\r\n", b"0x2\r\n{}\r\n0\r\n\r\n", b" 2\r\n{}\r\n0\r\n\r\n", b"0\r\nx: " + b"y" * 80_000 + b"\r\n\r\n"),
]
GARBAGE = [
    *(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\r\n\r\n", b"\x00" * 100, b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"),
    *(b"GET / HTTP/1.1\n\n", b"GET  /  HTTP/1.1\r\nhost: x\r\n\r\n", b"GET / HTTP/1.1\r\n folded: x\r\n\r\n", b"GET / HTTP/1.1\r\nhost: x\r\n y\r\n\r\n"),
    *(b"GET /livez HTTP/1.0\r\n\r\n", b"GET /livez HTTP/0.9\r\n\r\n", b"GET /livez\r\n", b"SSH-2.0-x\r\n", b"{}" * 50_000, b"GET / HTTP/1.1\r\nhost x\r\n\r\n"),
    *(b"GET /livez HTTP/1.1\r\n" + b"a: b\r\n" * 101 + b"\r\n", b"GET /livez HTTP/1.1\r\n" + b"a: b\r\n" * 20_000, b"GET /" + b"a" * 100_000),
]


class Cases:
    """The cases of a seed.

    Args:
        seed: The seed. A case depends on the seed and its number, and not on other cases.
        keys: A valid key and keys that may not make all calls.
    """

    def __init__(self, seed: int, keys: list[str]) -> None:
        self._seed, self._keys = seed, keys
        self._operations = Operations(keys[0])
        self._kinds: dict[Callable[[Random], Case], int] = {
            self._valid: 24, self._document: 24, self._text: 9, self._parameters: 10, self._path: 6, self._headers: 10,
            self._credentials: 4, self._large: 1, self._framing: 5, self._garbage: 3, self._pipelined: 3, self._leaving: 3,
            self._split: 3, self._slow: 1,
        }  # fmt: skip

    @property
    def operations(self) -> list[str]:
        """Ids of all operations."""
        return list(self._operations.all)

    def case(self, number: int) -> Case:
        """Return a case."""
        random = Random(f"{self._seed}/{number}")
        make = random.choices(list(self._kinds), list(self._kinds.values()))[0]
        return make(random)

    def preparation(self) -> list[Case]:
        """Return requests that create all jobs, with an open batch."""
        random = Random(self._seed)
        made: list[Case] = []
        for job in JOBS:
            for name in ("put_job", "begin", "report"):
                request = self._operations.one(random, name)
                for known in JOBS:
                    request.target = request.target.replace(known.encode(), job.encode())
                if name == "put_job":
                    request.set(b"if-none-match", b"*")
                    request.headers = [each for each in request.headers if each[0] != b"if-match"]
                made.append(_case("preparation", request))
        return made

    def _valid(self, random: Random) -> Case:
        return _case("valid", self._operations.any(random))

    def _document(self, random: Random) -> Case:
        request = self._operations.with_body(random)
        request.body = documents.mutated(random, request.document)
        return _case("document", request)

    def _text(self, random: Random) -> Case:
        request = self._operations.with_body(random)
        assert request.body is not None
        request.body = documents.broken(random, request.body)
        if random.random() < 0.2:
            request.headers.append((b"content-encoding", random.choice([b"gzip", b"br", b"deflate"])))
        return _case("text", request)

    def _large(self, random: Random) -> Case:
        request = self._operations.with_body(random)
        request.body = documents.large(random, request.document)
        return _case("large", request)

    def _parameters(self, random: Random) -> Case:
        request = self._operations.any(random)
        pairs = [b"%b=%b" % (random.choice(NAMES), random.choice(PARAMETERS)) for _ in range(random.choice([1, 1, 2, 3]))]
        if random.random() < 0.05:
            pairs = [b"lag_ms=1"] * random.choice([201, 5000])
        request.target += (b"&" if b"?" in request.target else b"?") + b"&".join(pairs)
        return _case("parameters", request, must_answer=False)

    def _path(self, random: Random) -> Case:
        request = self._operations.any(random)
        if random.random() < 0.5:
            request.target = random.choice(PATHS)
        else:
            job = random.choice(IDS["job"]).encode()
            value = random.choice([*PARAMETERS, *PATHS])
            request.target = request.target.replace(job, value, 1)
        if random.random() < 0.4:
            request.method = random.choice(METHODS)
        if random.random() < 0.3:
            request.headers = [each for each in request.headers if each[0] != b"authorization"]
        return _case("path", request, must_answer=False)

    def _headers(self, random: Random) -> Case:
        request = self._operations.any(random)
        for _ in range(random.choice([1, 1, 2, 4])):
            name, value = random.choice(HEADERS)
            if random.random() < 0.5:
                request.set(name, value)
            else:
                request.headers.append((name, value))
        if random.random() < 0.1:
            request.headers += [(b"x-%d" % number, b"y" * 10) for number in range(random.choice([50, 110, 2000]))]
        return _case("headers", request, must_answer=False)

    def _credentials(self, random: Random) -> Case:
        request = self._operations.any(random)
        other = random.choice(self._keys).encode()
        value = random.choice([b"", b"Bearer", b"Bearer ", b"bearer " + other, b"Bearer " + other, b"Bearer " + other[:-1], b"Bearer tdg__", b"Bearer \xff", b"Bearer " + b"x" * 60_000, b"Basic " + other, b"Bearer tdg_000000000000_" + b"a" * 43, other])  # fmt: skip  # noqa: E501
        request.set(b"authorization", value)
        return _case("credentials", request, must_answer=False)

    def _framing(self, random: Random) -> Case:
        request = self._operations.with_body(random)
        framing = random.choice(FRAMINGS)
        request.headers += framing
        if any(b"transfer-encoding" in name for name, _ in framing):
            request.body = random.choice(CHUNKS)
        return _case("framing", request, must_answer=False)

    def _garbage(self, random: Random) -> Case:
        wire = random.choice(GARBAGE)
        if random.random() < 0.6:
            valid = self._operations.any(random).encode()
            wire = documents.broken(random, valid[:2000])
        return Case("garbage", "none", wire, [b"GET"] * 50, must_answer=False)

    def _pipelined(self, random: Random) -> Case:
        requests = [self._operations.any(random) for _ in range(random.choice([2, 5, 30]))]
        requests = [request for request in requests if request.operation != "watch"]
        wire = b"".join(request.encode() for request in requests) + random.choice([b"", b"", b"\x00garbage\r\n\r\n"])
        return Case("pipelined", "several", wire, [request.method for request in requests], must_answer=wire[-4:] != b"\r\n\r\n")

    def _leaving(self, random: Random) -> Case:
        wire = self._operations.any(random).encode()
        wire = wire[: random.choice([len(wire), random.randrange(len(wire) + 1)])]
        return Case("leaving", "none", wire, must_answer=False, leaves=True)

    def _split(self, random: Random) -> Case:
        """Return a valid request in small pieces."""
        case = _case("split", self._operations.any(random))
        case.piece = random.choice([1, 7, 100])
        return case

    def _slow(self, random: Random) -> Case:
        """Return a request that is never complete in time."""
        wire = self._operations.with_body(random).encode()
        first = random.choice([0, wire.index(b"\r\n\r\n") + 4])
        case = Case("slow", "none", wire[: first + SLOW_BYTES], must_answer=False)
        case.piece, case.pause_s = max(1, first), 1.0
        return case


def _case(kind: str, request: Request, *, must_answer: bool = True) -> Case:
    return Case(kind, request.operation, request.encode(), [request.method], must_answer)
