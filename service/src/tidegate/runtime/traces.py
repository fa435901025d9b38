"""Traces by OpenTelemetry, where an exporter is configured the way that has (``OTEL_EXPORTER_OTLP_ENDPOINT``).

Its packages come with ``tidegate[traces]``; without an endpoint none of them is loaded.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

Headers = Iterable[tuple[bytes, bytes]]
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


class CannotTrace(Exception):
    """Why there can be no traces although they are asked for; the message says what to do."""


class Call(Protocol):
    """A call that is traced."""

    def named(self, name: str, attributes: Mapping[str, str | int]) -> None:
        """What it turned out to be."""


class _Untraced:
    def named(self, name: str, attributes: Mapping[str, str | int]) -> None:
        pass


_UNTRACED = nullcontext(_Untraced())


class Traces:
    """Nothing is traced."""

    on = False

    def call(self, method: str, headers: Headers) -> Any:
        """Goes around a call, and gives a :class:`Call`. It belongs to the trace that ``headers`` name."""
        return _UNTRACED

    def command(self, name: str) -> Any:
        """Goes around a command to the store."""
        return nullcontext()

    def close(self) -> None:
        """Sends what is left."""


def configured(environment: Mapping[str, str] = os.environ) -> Traces:
    """:raises CannotTrace: where an endpoint is configured, but the packages are missing."""
    if not any(environment.get(name) for name in ENDPOINTS):
        return Traces()
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise CannotTrace(
            f"{ENDPOINTS[1]} is set, but the packages for traces are missing: pip install 'tidegate[traces]', or "
            "unset it."
        ) from None
    name = environment.get("OTEL_SERVICE_NAME", "tidegate")
    provider = TracerProvider(resource=Resource.create({"service.name": name}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return _Otel(provider)


class _Otel(Traces):
    on = True

    def __init__(self, provider: "TracerProvider") -> None:
        from opentelemetry import propagate
        from opentelemetry.trace import SpanKind

        self._provider, self._extract = provider, propagate.extract
        self._tracer = provider.get_tracer("tidegate")
        self._server, self._client = SpanKind.SERVER, SpanKind.CLIENT

    @contextmanager
    def call(self, method: str, headers: Headers) -> Iterator[Call]:
        told = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
        with self._tracer.start_as_current_span(method, self._extract(told), self._server) as span:
            yield _Traced(span)

    def command(self, name: str) -> Any:
        return self._tracer.start_as_current_span(f"store {name}", kind=self._client)

    def close(self) -> None:
        self._provider.shutdown()


class _Traced:
    def __init__(self, span: "Span") -> None:
        self._span = span

    def named(self, name: str, attributes: Mapping[str, str | int]) -> None:
        from opentelemetry.trace import StatusCode

        self._span.update_name(name)
        self._span.set_attributes(attributes)
        status = attributes.get("http.response.status_code")
        if isinstance(status, int) and status >= 500:
            self._span.set_status(StatusCode.ERROR)
