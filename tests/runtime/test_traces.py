"""Traces as an OpenTelemetry collector receives them."""

import os
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.support.api import CONFIG, RUN
from tidegate.runtime import traces
from tidegate.runtime.traces import CannotTrace
from tidegate_spark.testing import CoordinatorProcess

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Collector(ThreadingHTTPServer):
    """A collector that keeps the spans it receives over OTLP/HTTP."""

    spans: list[tuple[str, Span]]

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.spans = []


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, Collector)
        request = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["Content-Length"])))
        for resource in request.resource_spans:
            service = {one.key: one.value.string_value for one in resource.resource.attributes}["service.name"]
            self.server.spans += [(service, span) for scope in resource.scope_spans for span in scope.spans]
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def test_a_call_is_a_span_that_contains_its_commands(
    collector: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The span belongs to the client's trace. Its name is the route, and its attributes name job, query and batch."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.server_port}")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "job")
    with CoordinatorProcess(tmp_path) as process, httpx.Client(base_url=process.url, timeout=30) as http:
        http.put("/v1/jobs/j", json=CONFIG, headers={"If-None-Match": "*"}).raise_for_status()
        parent = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
        http.put("/v1/jobs/j/queries/q/batches/3", json=RUN, headers=parent).raise_for_status()
        http.get("/v1/jobs/none")
    # The coordinator stopped cleanly, so it has sent all spans.
    spans = [span for _, span in collector.spans]
    assert {service for service, _ in collector.spans} == {"job"}
    [begin] = [span for span in spans if span.name == "PUT /v1/jobs/{job}/queries/{query}/batches/{batch}"]
    assert (begin.trace_id.hex(), begin.parent_span_id.hex()) == (TRACE, PARENT)
    attributes = {one.key: one.value.string_value or one.value.int_value for one in begin.attributes}
    assert attributes == {
        "http.request.method": "PUT",
        "http.route": "/v1/jobs/{job}/queries/{query}/batches/{batch}",
        "http.response.status_code": 200,
        "tidegate.job": "j",
        "tidegate.query": "q",
        "tidegate.batch": "3",
    }
    [command] = [span for span in spans if span.name == "store begin"]
    assert (command.trace_id, command.parent_span_id) == (begin.trace_id, begin.span_id)
    assert begin.start_time_unix_nano <= command.start_time_unix_nano <= begin.end_time_unix_nano
    missing = [span for span in spans if span.name == "GET /v1/jobs/{job}"]
    assert [span.status.code for span in missing] == [0], (
        "404 is an error of the client, so the span has no error status"
    )


def test_without_a_configuration_no_tracing_package_is_loaded() -> None:
    """Without a configuration, the packages may be missing, and importing them would slow down every start."""
    code = (
        "import sys, tidegate.app; print([name for name in sys.modules if name.startswith('opentelemetry.sdk.trace')])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"
    assert not traces.configured_traces({}).enabled


def test_tracing_without_its_packages_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the package to install."""
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(CannotTrace, match=r"pip install 'tidegate\[traces\]'"):
        traces.configured_traces({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"})


def test_serve_without_the_packages_ends_with_one_line(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['opentelemetry.sdk.trace'] = None; from tidegate.__main__ import cli; cli(['serve'])"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TIDEGATE_")}
    environment |= {"TIDEGATE_DATA_DIR": str(tmp_path), "TIDEGATE_PORT": "0"}
    environment |= {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}
    ended = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 1
    [line] = ended.stderr.splitlines()
    assert line.startswith("tidegate: OTEL_EXPORTER_OTLP") and "pip install 'tidegate[traces]'" in line
