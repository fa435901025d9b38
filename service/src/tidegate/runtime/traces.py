"""OpenTelemetry traces, if an exporter is configured (``OTEL_EXPORTER_OTLP_ENDPOINT``).

The extra ``tidegate[traces]`` installs the packages. The service imports them only if an endpoint is configured.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

Headers = Iterable[tuple[bytes, bytes]]
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


class CannotTrace(Exception):
    """Raised when traces are configured, but their packages are missing. The message says what to do."""


class Call:
    """The trace of one call."""

    def __init__(self, span: "Span") -> None:
        self._span = span

    def finish(self, name: str, attributes: Mapping[str, str | int], *, failed: bool) -> None:
        """Set the name and the attributes of the call, and whether the service failed."""
        from opentelemetry.trace import StatusCode

        self._span.update_name(name)
        self._span.set_attributes(attributes)
        if failed:
            self._span.set_status(StatusCode.ERROR)


class Traces:
    """The traces of a replica. This base class records nothing."""

    enabled = False

    def call(self, method: str, headers: Headers) -> AbstractContextManager[Call | None]:
        """Return the context manager of a call, which continues the trace in the headers."""
        return nullcontext()

    def command(self, name: str) -> AbstractContextManager[object]:
        """Return the context manager of a store command."""
        return nullcontext()

    def close(self) -> None:
        """Export the remaining spans."""


def configured_traces(environment: Mapping[str, str] = os.environ) -> Traces:
    """Return the traces that the environment configures.

    Raises:
        CannotTrace: If an endpoint is configured, but the packages are missing.
    """
    if not any(environment.get(name) for name in ENDPOINTS):
        return Traces()
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise CannotTrace(
            f"{' or '.join(ENDPOINTS)} is set, but the packages for traces are missing; install them (pip install "
            "'tidegate[traces]'), or unset the variable."
        ) from None
    name = environment.get("OTEL_SERVICE_NAME", "tidegate")
    provider = TracerProvider(resource=Resource.create({"service.name": name}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return _OpenTelemetry(provider)


class _OpenTelemetry(Traces):
    enabled = True

    def __init__(self, provider: "TracerProvider") -> None:
        from opentelemetry import propagate
        from opentelemetry.trace import SpanKind

        self._provider, self._extract = provider, propagate.extract
        self._tracer = provider.get_tracer("tidegate")
        self._server, self._client = SpanKind.SERVER, SpanKind.CLIENT

    @contextmanager
    def call(self, method: str, headers: Headers) -> Iterator[Call]:
        texts = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
        with self._tracer.start_as_current_span(method, self._extract(texts), self._server) as span:
            yield Call(span)

    def command(self, name: str) -> Any:
        return self._tracer.start_as_current_span(f"store {name}", kind=self._client)

    def close(self) -> None:
        self._provider.shutdown()
