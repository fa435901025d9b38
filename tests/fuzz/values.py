"""Parts of requests that a coordinator must refuse or ignore: methods, paths, parameters, headers, bodies in chunks."""

from tests.fuzz.messages import Headers

METHODS = [
    *(b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS", b"TRACE", b"CONNECT", b"PURGE", b"get"),
    b"X" * 300,
]
PATHS = [
    *(b"/", b"//", b"/v1", b"/v1/", b"/v1/jobs/", b"/v1/jobs/%00", b"/v1/jobs/a%2Fb", b"/v1/jobs/%2e%2e/keys"),
    *(b"/v1/../livez", b"/v1/jobs/\xff", b"/v1/jobs/%ff", b"/v1/jobs/%", b"/v1/jobs/%zz", b"/v1/jobs/a:b:report"),
    *(b"/v1/jobs/" + b"a" * 129, b"/v1/jobs/" + b"a" * 30_000, b"/v1/jobs/" + b"a" * 70_000, b"*"),
    *(b"http://localhost/v1/jobs", b"http://evil/livez", b"/static/../../etc/passwd"),
    *(b"/static/%2e%2e/%2e%2e/etc/passwd", b"/static/", b"/static/style.css", b"/jobs/x%2Fy", b"/jobs/fuzzed-0"),
    *(b"/jobs/%F0%9F%98%80", b"/login", b"/logout", b"/live", b"/login?next=//evil", b"/?sort=x&match=%00"),
    *(b"/v1/openapi.json", b"/docs", b"/v1/jobs;a=b", b"/v1/jobs#x", b"/v1/jobs/fuzzed-0/", b"/v1/jobs?%"),
    *(b"/metrics?substreams=(", b"/v1/jobs/fuzzed-0/queries/q/batches/-1"),
    *(b"/v1/jobs/fuzzed-0/queries/q/batches/" + b"9" * 16, b"/v1/jobs/fuzzed-0/queries/q/batches/" + b"9" * 5000),
    *(b"/v1/jobs/fuzzed-0/queries/q/batches/1e3", b"livez", b""),
]
PARAMETERS = [
    *(b"", b"1", b"-1", b"0", b"1e9", b"9" * 400, b"9" * 5000, b"NaN", b"inf", b"%00", b"%ff%fe", b"true", b"%"),
    *(b"a" * 3000, b"%F0%9F%98%80", b"*" * 200, b"%2A%2A%2Aa", b"1-1", b"0-0"),
    *(b"9999999999999999-9999999999999999999", b"99999999999999999-0", b"1:a/", b":/", b"-1:q/x", b"null", b"[]"),
    *(b"1&", b"+1", b"1.0", b"0x1", b"%0A", b"%20", b"\xc3\xa4", b"a%2Fb", b"2e308", b"9007199254740992"),
]
NAMES = [
    *(b"x", b"limit", b"after", b"before", b"as_of", b"since", b"kind", b"state", b"sort", b"name", b"query"),
    *(b"substream", b"window_ms", b"target", b"lag_ms", b"at_least", b"timeout_s", b"descending", b"reason"),
    *(b"substreams", b"%00", b"", b"limit[]"),
]
HEADERS: Headers = [
    *(
        (b"content-type", value)
        for value in (
            b"text/plain",
            b"application/json; charset=utf-16",
            b"application/x-www-form-urlencoded",
            b"",
            b"application/json, text/plain",
            b"\xff",
        )
    ),
    *((b"content-encoding", value) for value in (b"gzip", b"deflate", b"br", b"identity", b"unknown", b"gzip, gzip")),
    *(
        (b"if-match", value)
        for value in (
            b"*",
            b'"1-1"',
            b'W/"1-1"',
            b"1-1",
            b'"' + b"9" * 5000 + b'-1"',
            b'"-1--1"',
            b"",
            b'"1-1", "1-2"',
            b"\xff",
        )
    ),
    *((b"if-none-match", value) for value in (b"*", b'"1-1"', b"")),
    *(
        (b"last-event-id", value)
        for value in (
            b"0-0",
            b"1-1",
            b"x",
            b"9" * 16 + b"-" + b"9" * 19,
            b"9" * 30 + b"-1",
            b"1-",
            b"\xff",
            b"",
            b"1-1\x0b",
            b"1-" + b"9" * 25,
        )
    ),
    *((b"host", value) for value in (b"evil.example", b"", b"localhost:99999", b"[::1]", b"\xff")),
    *(
        (b"accept", value)
        for value in (
            b"text/html",
            b"application/openmetrics-text; version=1.0.0",
            b"*/*;q=x",
            b"\xff" * 9,
            b"," * 5000,
        )
    ),
    *((b"accept-encoding", value) for value in (b"gzip", b"br;q=1", b"gzip;q=x")),
    *((b"x-request-id", value) for value in (b"a" * 129, b"\xff", b"ok", b"a b", b"")),
    *((b"x-forwarded-for", value) for value in (b"1.2.3.4", b"x", b"1.2.3.4, 5.6.7.8", b"\xff", b"[::1]:1")),
    *((b"x-forwarded-proto", value) for value in (b"https", b"\xff")),
    *((b"traceparent", value) for value in (b"00-0-0-00", b"\xff", b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01")),
    *((b"cookie", value) for value in (b"session=x", b"a=b; " * 1000, b"\xff", b"=;=", b'session="')),
    *((b"expect", value) for value in (b"100-continue", b"x")),
    *((b"upgrade", b"websocket"), (b"connection", b"upgrade"), (b"connection", b"close"), (b"connection", b"x, y")),
    *((b"upgrade", b"h2c"), (b"http2-settings", b"AAAA"), (b"range", b"bytes=0-1,5-")),
    *((b"origin", b"https://evil.example"), (b"sec-fetch-site", b"cross-site"), (b"authorization", b"Basic YTpi")),
    *((b"x" * 60_000, b"y"), (b"x", b"y" * 60_000), (b"", b"empty"), (b"a b", b"c"), (b"x\x00", b"y")),
    *((b"x", b"\x00"), (b"x", b"a\rb"), (b"x", b"a\nb"), (b"transfer-encoding", b"identity")),
]
FRAMINGS: list[Headers] = [
    *(
        [(b"content-length", value)]
        for value in (
            b"-1",
            b"+5",
            b"5x",
            b"0x5",
            b"",
            b" 5",
            b"9" * 30,
            b"1" * 5000,
            b"1e3",
            b"1,1",
            b"0",
            b"4194305",
            b"99999999999",
        )
    ),
    *(
        [(b"transfer-encoding", value)]
        for value in (
            b"chunked",
            b"Chunked",
            b"chunked, chunked",
            b"gzip, chunked",
            b"chunked, gzip",
            b"identity",
            b"\x0bchunked",
            b"xchunked",
        )
    ),
    [(b"content-length", b"5"), (b"content-length", b"6")],
    [(b"content-length", b"5"), (b"transfer-encoding", b"chunked")],
    [(b"transfer-encoding", b"chunked"), (b"content-length", b"5")],
    [(b"transfer-encoding", b"chunked"), (b"transfer-encoding", b"identity")],
    *([(b"transfer-encoding ", b"chunked")], [(b"content-length\x00", b"3")]),
]
CHUNKS = [
    *(b"0\r\n\r\n", b"5\r\nhello\r\n0\r\n\r\n", b"2\r\n{}\r\n0\r\n\r\n", b"FFFFFFFFFFFFFFFF\r\n"),
    *(b"FFFFFFFFFFFFFFFFFF\r\n", b"-1\r\n", b"x\r\n", b"2;" + b"a" * 80_000 + b"\r\n{}\r\n0\r\n\r\n"),
    *(b"0\r\n" + b"t: v\r\n" * 300 + b"\r\n", b"2\n{}\n0\n\n", b"2\r\n{}0\r\n\r\n", b"1\r\n{\r\n1\r\n}\r\n0\r\n\r\n"),
    *(b"0x2\r\n{}\r\n0\r\n\r\n", b" 2\r\n{}\r\n0\r\n\r\n", b"0\r\nx: " + b"y" * 80_000 + b"\r\n\r\n"),
]
GARBAGE = [
    b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n" * 2000,
    *(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\r\n\r\n"),
    *(b"\x00" * 100, b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET / HTTP/1.1\n\n"),
    *(b"GET  /  HTTP/1.1\r\nhost: x\r\n\r\n", b"GET / HTTP/1.1\r\n folded: x\r\n\r\n"),
    *(b"GET / HTTP/1.1\r\nhost: x\r\n y\r\n\r\n", b"GET /livez HTTP/1.0\r\n\r\n", b"GET /livez HTTP/0.9\r\n\r\n"),
    *(b"GET /livez\r\n", b"SSH-2.0-x\r\n", b"{}" * 50_000, b"GET / HTTP/1.1\r\nhost x\r\n\r\n"),
    *(b"GET /livez HTTP/1.1\r\n" + b"a: b\r\n" * 101 + b"\r\n", b"GET /livez HTTP/1.1\r\n" + b"a: b\r\n" * 20_000),
    b"GET /" + b"a" * 100_000,
]
