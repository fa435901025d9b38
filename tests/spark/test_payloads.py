"""What the client says to the coordinator, and what it hears, against the document, in both directions.

All of it passes through a recorder on the way. Each body must be as the document says; and what the document says that
may be sent, the client sends, but for what is named here as being for others.
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
from tidegate_spark import Batch, connect, limiting_lag, windows
from tidegate_spark.config import (
    limiting_lag_and_delay,
    limiting_lag_and_lull,
    limiting_timestamp_and_wall_clock_lag,
    target_completeness,
)
from tidegate_spark.testing import CoordinatorProcess, FileBatches

OPENAPI = json.loads(DOCUMENT.read_text())

OF_OTHERS = {
    "list_jobs",
    "list_keys",
    "explain_job",
    "history",
    "watch",
    "get_batch",
    "delete_job",
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
}
"""Calls that Spark jobs do not make: those of people, of the programs that help them, and of supervisors."""
UNSAID = {"Report": {"min_event_times", "watermarks"}}
"""Members for reporters without batches, and for those with watermarks of their own."""


@dataclass(frozen=True)
class Exchange:
    method: str
    path: str
    sent: bytes
    status: int
    content_type: str
    heard: bytes


@dataclass
class Recorder:
    """Hands on what comes to the coordinator, and keeps it."""

    target: str
    url: str = ""
    exchanges: list[Exchange] = field(default_factory=list)

    def handler(self) -> type[BaseHTTPRequestHandler]:
        recorder = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _hand_on(self) -> None:
                sent = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                onwards = http.client.HTTPConnection(recorder.target, timeout=60)
                headers = {name: value for name, value in self.headers.items() if name != "Host"}
                onwards.request(self.command, self.path, sent or None, headers)
                answer = onwards.getresponse()
                heard, kind = answer.read(), answer.headers["Content-Type"]
                onwards.close()
                recorder.exchanges.append(Exchange(self.command, self.path, sent, answer.status, kind, heard))
                self.send_response(answer.status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(heard)))
                self.end_headers()
                self.wfile.write(heard)

            do_GET = do_PUT = do_POST = _hand_on  # noqa: N815 - the names that the server looks for

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


def fail(df: DataFrame, batch: Batch) -> None:
    raise RuntimeError("in the midst of a batch, which is then begun again")


@pytest.fixture(scope="module")
def said(
    recorder: Recorder, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[Exchange]]:
    """All that is said by queries of every kind and by the calls of a gate, by operation."""
    folder = tmp_path_factory.mktemp("payloads")
    job = connect(recorder.url, job="payloads", config=limiting_lag(LAG, idle_timeout=timedelta(seconds=1)))
    source = FileBatches(folder / "input", "k string, t long")
    stream = job.stream(source.stream(spark), event_time="t", substream="k").declare("z")
    source.add(*rows(("a", 80_000)))
    with pytest.raises(StreamingQueryException, match="in the midst"):
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
    job.change_config(limiting_lag(LAG, frame=timedelta(seconds=10)))
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


def test_the_client_makes_all_the_calls_of_a_spark_job(said: dict[str, list[Exchange]]) -> None:
    """What it does not call is not for it; what it calls is in the document."""
    calls = {call["operationId"] for methods in OPENAPI["paths"].values() for call in methods.values()}
    assert said.keys() == calls - OF_OTHERS


def test_what_the_client_says_is_as_the_document_has_it(said: dict[str, list[Exchange]]) -> None:
    """Each body and each parameter; a member that nobody knows would be refused."""
    for operation, exchanges in said.items():
        call = call_of(operation)
        takes = {parameter["name"] for parameter in call.get("parameters", ()) if parameter["in"] == "query"}
        for exchange in exchanges:
            query = urlsplit(exchange.path).query
            assert {name for name, _ in parse_qsl(query, keep_blank_values=True)} <= takes
            if "requestBody" in call:
                validator(body_schema(call)).validate(json.loads(exchange.sent))
            else:
                assert exchange.sent == b""


def test_what_the_document_lets_a_spark_job_say_the_client_says(said: dict[str, list[Exchange]]) -> None:
    """A member that it never sends is one that it does not know, or one that nobody needs."""
    for operation, exchanges in said.items():
        call = call_of(operation)
        if "requestBody" not in call or operation == "put_job":
            continue
        name = body_schema(call)["$ref"].rpartition("/")[2]
        sent = {member for exchange in exchanges for member in json.loads(exchange.sent)}
        assert sent == OPENAPI["components"]["schemas"][name]["properties"].keys() - UNSAID.get(name, set()), name


def test_what_the_client_hears_is_as_the_document_has_it(said: dict[str, list[Exchange]]) -> None:
    """Refusals, too; and no member comes that the document does not name."""
    refused = 0
    for operation, exchanges in said.items():
        responses = call_of(operation)["responses"]
        for exchange in exchanges:
            response = responses.get(str(exchange.status), responses["default"])
            schema = response["content"][exchange.content_type]["schema"]
            heard = json.loads(exchange.heard)
            validator(schema).validate(heard)
            if exchange.status < 300:
                name = schema["$ref"].rpartition("/")[2]
                assert heard.keys() <= OPENAPI["components"]["schemas"][name]["properties"].keys(), name
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
    "query_timeout": LAG,
    "max_batch_hold": LAG,
    "delay_half_life": LAG,
    "max_future_skew": None,
    "overrides": {"slow-*": limiting_lag(2 * LAG)},
    "expected_queries": ["orders", "payments"],
}


def test_the_rules_that_can_be_written_are_those_that_are_taken() -> None:
    """Each policy, each throttle, each limit: what the one side has the other has, under the same names."""
    document = OPENAPI["components"]["schemas"]["JobDocument"]
    kinds = document["properties"]["policy"]["discriminator"]["mapping"].keys()
    assert POLICIES.keys() == kinds - {"reported"}, "ready-made watermarks are not for Spark jobs"
    throttles: list[dict[str, Any]] = [{}, {"frame": LAG, "slide": LAG / 2, "offset": LAG / 4}, {"min_step": LAG}]
    taken = document["properties"]["throttle"]["discriminator"]["mapping"].keys()
    written = set()
    for throttle in throttles:
        config = limiting_lag(LAG, **throttle, **EVERY_LIMIT)
        validator({"$ref": "#/components/schemas/JobDocument"}).validate(config)
        written.add(config.get("throttle", {"type": "none"})["type"])
        assert config.keys() | {"throttle"} == document["properties"].keys()
    assert written == taken
    for config in POLICIES.values():
        validator({"$ref": "#/components/schemas/JobDocument"}).validate(config)


def body_schema(call: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = call["requestBody"]["content"]["application/json"]["schema"]
    return found


def validator(schema: dict[str, Any]) -> Draft202012Validator:
    return Draft202012Validator({**schema, "components": OPENAPI["components"]})
