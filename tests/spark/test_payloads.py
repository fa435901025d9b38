"""Requests and responses between the client and the coordinator, compared with the OpenAPI document.

A recorder between them keeps all exchanges. Each body must match the document. The client must send every member of the
document, except those that are listed here for other clients.
"""

import http.client
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from jsonschema import Draft202012Validator
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from tests.support.api import DOCUMENT
from tests.support.streams import LAG, Sink, rows, to_the_end
from tests.support.waiting import until
from tidegate_spark import connect, limiting_lag, windows
from tidegate_spark.config import (
    limiting_lag_and_delay,
    limiting_lag_and_lull,
    limiting_timestamp_and_wall_clock_lag,
    target_completeness,
)
from tidegate_spark.testing import CoordinatorProcess, FileBatches

OPENAPI = json.loads(DOCUMENT.read_text())

OTHER_OPERATIONS = {
    "list_jobs",
    "list_keys",
    "explain",
    "history",
    "watch",
    "get_batch",
    "offsets",
    "delete",
    "idle",
    "evict",
    "restore",
    "reopen",
    "reset",
    "hold",
    "release",
    "livez",
    "readyz",
    "metrics",
    "completeness",
    "late",
    "holders",
    "consumers",
    "consumer",
    "consume",
    "forget_consumer",
}
"""Operations that queries do not make. `tests/client/test_job_methods.py` calls the methods of `Job` for them."""
NOT_SENT = {
    "Report": {"min_event_times", "watermarks"},
    "BeginRequest": {"outputs"},
    "CommitRequest": {"caught_up", "caught_up_age_ms", "offsets", "outputs"},
    "HeartbeatRequest": {"offsets", "outputs"},
}
"""Members for other clients (reporters without batches, and reporters of watermarks), and for Kafka and tables, which
`tests/client/test_batch_protocol.py` and `tests/client/test_told_offsets.py` send.
"""


@dataclass(frozen=True)
class Exchange:
    method: str
    path: str
    sent: bytes
    status: int
    content_type: str
    received: bytes


@dataclass
class Recorder:
    """A proxy that forwards requests to the coordinator and keeps the exchanges."""

    target: str
    url: str = ""
    exchanges: list[Exchange] = field(default_factory=list)

    def handler(self) -> type[BaseHTTPRequestHandler]:
        recorder = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _forward(self) -> None:
                sent = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                onwards = http.client.HTTPConnection(recorder.target, timeout=60)
                headers = {name: value for name, value in self.headers.items() if name != "Host"}
                onwards.request(self.command, self.path, sent or None, headers)
                answer = onwards.getresponse()
                received, kind = answer.read(), answer.headers["Content-Type"]
                onwards.close()
                recorder.exchanges.append(Exchange(self.command, self.path, sent, answer.status, kind, received))
                self.send_response(answer.status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(received)))
                self.end_headers()
                self.wfile.write(received)

            do_GET = do_PUT = do_POST = _forward  # noqa: N815 - names that the server requires

            def log_message(self, *_: Any) -> None:
                pass

        return Handler


@pytest.fixture(scope="module")
def recorder(tidegate: CoordinatorProcess) -> Iterator[Recorder]:
    recorder = Recorder(urlsplit(tidegate.url).netloc)
    with ThreadingHTTPServer(("127.0.0.1", 0), recorder.handler()) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        recorder.url = f"http://127.0.0.1:{server.server_port}"
        yield recorder
        server.shutdown()


def fail(df: DataFrame, batch_id: int) -> None:
    raise RuntimeError("this batch fails and is repeated")


@pytest.fixture(scope="module")
def recorded(
    recorder: Recorder, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[Exchange]]:
    """Return the exchanges of queries of every kind and of the calls of a job, by operation."""
    folder = tmp_path_factory.mktemp("payloads")
    job = connect(
        recorder.url, job="payloads", config=limiting_lag(LAG, idle_timeout=timedelta(seconds=1), frames="hour")
    )
    source = FileBatches(folder / "input", "k string, t long")
    stream = job.stream(source.stream(spark), event_time="t", substream="k").declare("z")
    source.add(*rows(("a", 80_000)))
    with pytest.raises(StreamingQueryException, match="this batch fails"):
        to_the_end(stream.foreach_batch(fail), str(folder / "executor"), "executor")
    for mode in ("executor", "driver"):
        reporting = Sink().after(stream.reporting(mode).measure_delays("batch" if mode == "executor" else "none"))
        source.add(*rows(("a", 100_000), ("b", 90_000), ("c", None), ("d", 2**50)))
        to_the_end(reporting, str(folder / mode), mode)
        source.add(*rows(("a", 130_000), ("b", 50_000)))
        query = reporting.tuning(heartbeat_ms=100).start(queryName=mode, checkpointLocation=str(folder / mode))
        until(lambda: any(":heartbeat" in exchange.path for exchange in recorder.exchanges), "a heartbeat")
        query.stop()
    tens = stream.windows(10_000).agg("k", rows=windows.count()).allowed_lateness(5000)
    to_the_end(Sink().after(tens), str(folder / "windows"), "windows")
    job.declare("declared", ["a", "b"])
    job.connection.run(job.connection.calls.declare("declared", ["c"], "as after a loss", {"c": 90_000}))
    job.done("windows", ["a"], "ended")
    job.hand_over("driver", "driver-2", "renamed")
    job.retire("driver-2", "over")
    assert job.frames()["frames"] == [job.frame(80_000)]
    job.configure(limiting_lag(LAG, frame=timedelta(seconds=10)))
    assert job.status()["revision"] == 2 and job.queries() and job.substreams()
    job.complete("the end of the input")
    found: defaultdict[str, list[Exchange]] = defaultdict(list)
    for exchange in recorder.exchanges:
        found[operation_of(exchange)].append(exchange)
    return found


PATHS = {
    re.compile(re.sub(r"\{[a-z]+\}", "[^/:]+", path) + "$"): {m: call["operationId"] for m, call in methods.items()}
    for path, methods in OPENAPI["paths"].items()
}


def operation_of(exchange: Exchange) -> str:
    for pattern, operations in PATHS.items():
        if pattern.match(exchange.path.partition("?")[0]):
            found: str = operations[exchange.method.lower()]
            return found
    raise AssertionError(f"{exchange.method} {exchange.path} is not in the document")


def call_of(operation: str) -> dict[str, Any]:
    found: dict[str, Any] = next(
        call for methods in OPENAPI["paths"].values() for call in methods.values() if call["operationId"] == operation
    )
    return found


def test_the_client_makes_all_the_calls_of_a_spark_job(recorded: dict[str, list[Exchange]]) -> None:
    """Operations that the client does not call are listed for other clients."""
    calls = {call["operationId"] for methods in OPENAPI["paths"].values() for call in methods.values()}
    assert recorded.keys() == calls - OTHER_OPERATIONS


def test_requests_match_the_document(recorded: dict[str, list[Exchange]]) -> None:
    """Bodies and parameters are checked. The coordinator refuses unknown members."""
    for operation, exchanges in recorded.items():
        call = call_of(operation)
        takes = {parameter["name"] for parameter in call.get("parameters", ()) if parameter["in"] == "query"}
        for exchange in exchanges:
            query = urlsplit(exchange.path).query
            assert {name for name, _ in parse_qsl(query, keep_blank_values=True)} <= takes
            if "requestBody" in call:
                validator(body_schema(call)).validate(json.loads(exchange.sent))
            else:
                assert exchange.sent == b""


def test_the_client_sends_every_member_for_spark_jobs(recorded: dict[str, list[Exchange]]) -> None:
    """A member that the client never sends is missing in the client, or superfluous in the document."""
    for operation, exchanges in recorded.items():
        call = call_of(operation)
        if "requestBody" not in call or operation == "configure":
            continue
        name = body_schema(call)["$ref"].rpartition("/")[2]
        sent = {member for exchange in exchanges for member in json.loads(exchange.sent)}
        assert sent == OPENAPI["components"]["schemas"][name]["properties"].keys() - NOT_SENT.get(name, set()), name


def test_responses_match_the_document(recorded: dict[str, list[Exchange]]) -> None:
    """Refusals are checked, too. No response has a member that the document lacks."""
    refused = 0
    for operation, exchanges in recorded.items():
        responses = call_of(operation)["responses"]
        for exchange in exchanges:
            response = responses.get(str(exchange.status), responses["default"])
            schema = response["content"][exchange.content_type]["schema"]
            received = json.loads(exchange.received)
            validator(schema).validate(received)
            if exchange.status < 300:
                name = schema["$ref"].rpartition("/")[2]
                assert received.keys() <= OPENAPI["components"]["schemas"][name]["properties"].keys(), name
            refused += exchange.status >= 400
    assert refused > 0


POLICIES = {
    "limiting_lag": limiting_lag(LAG),
    "limiting_lag_and_delay": limiting_lag_and_delay(LAG, LAG),
    "limiting_lag_and_lull": limiting_lag_and_lull(LAG, LAG),
    "limiting_timestamp_and_wall_clock_lag": limiting_timestamp_and_wall_clock_lag(LAG, LAG),
    "target_completeness": target_completeness(0.99, LAG),
}
EVERY_LIMIT: dict[str, Any] = {
    "idle_timeout": LAG,
    "max_retention": LAG,
    "max_skew": LAG,
    "arrival_target": 0.99,
    "max_arrival_delay": LAG,
    "query_timeout": LAG,
    "max_batch_hold": LAG,
    "delay_half_life": LAG,
    "max_future_skew": None,
    "max_lag": LAG,
    "overrides": {"slow-*": limiting_lag(2 * LAG)},
    "expected_queries": ["orders", "payments"],
    "frames": "day",
    "frames_offset": timedelta(hours=1),
    "time_zone": "Europe/Berlin",
    "correction_delay": LAG,
}


def test_the_client_can_write_every_configuration_of_the_document() -> None:
    """The client and the document have the same policies, throttles and limits, under the same names."""
    document = OPENAPI["components"]["schemas"]["JobConfig"]
    kinds = document["properties"]["policy"]["discriminator"]["mapping"].keys()
    assert POLICIES.keys() == kinds - {"reported"}, "Spark jobs do not report watermarks"
    throttles: list[dict[str, Any]] = [{}, {"frame": LAG, "slide": LAG / 2, "offset": LAG / 4}, {"min_step": LAG}]
    taken = document["properties"]["throttle"]["discriminator"]["mapping"].keys()
    written = set()
    for throttle in throttles:
        config = limiting_lag(LAG, **throttle, **EVERY_LIMIT)
        validator({"$ref": "#/components/schemas/JobConfig"}).validate(config)
        written.add(config.get("throttle", {"type": "none"})["type"])
        assert config.keys() | {"throttle"} == document["properties"].keys()
    assert written == taken
    for config in POLICIES.values():
        validator({"$ref": "#/components/schemas/JobConfig"}).validate(config)


def body_schema(call: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = call["requestBody"]["content"]["application/json"]["schema"]
    return found


def validator(schema: dict[str, Any]) -> Draft202012Validator:
    return Draft202012Validator({**schema, "components": OPENAPI["components"]})
