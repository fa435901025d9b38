"""Prometheus metrics of a replica itself."""

import time
from collections.abc import Callable, Collection, Iterable
from functools import cache, partial
from types import TracebackType

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from redis.exceptions import RedisError

from tidegate import __version__

NAMESPACE = "tidegate"
SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
STORE_SECONDS = SECONDS[:14]


class Metrics:
    """The metric registry of one replica."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        counter = partial(Counter, namespace=NAMESPACE, registry=registry)
        gauge = partial(Gauge, namespace=NAMESPACE, registry=registry)
        histogram = partial(Histogram, namespace=NAMESPACE, registry=registry)
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        GCCollector(registry=registry)
        Info("build", "Version of the service", namespace=NAMESPACE, registry=registry).info({"version": __version__})
        # Labelled metrics are cached, because looking up labels costs more than counting.
        self._reports_of: dict[str, Counter] = {}
        requests = histogram(
            "http_request_duration_seconds",
            "Time until the answer to a call began",
            ["call", "status"],
            buckets=SECONDS,
        )
        self._call = cache(lambda call, status: requests.labels(call, str(status)))
        commands = histogram(
            "store_command_duration_seconds", "Duration of a command to Redis", ["command"], buckets=STORE_SECONDS
        )
        errors = counter("store_errors", "Commands to Redis that failed", ["command"])
        # The first call of a command also creates its error counter, so that Prometheus reads 0 before an error.
        self._command = cache(lambda name: (commands.labels(name), errors.labels(name)))
        self._reports = counter("reports", "Reports that this replica received, including repetitions", ["job_name"])
        self._waiting = gauge("waiting_clients", "Clients that wait for a watermark or follow a job")
        self._max_waiting = gauge("waiting_clients_limit", "Limit on waiting clients of this replica")
        self._queued = gauge("queued_calls", "Calls that wait for their turn")
        self._body_bytes = gauge("body_bytes", "Bytes of request bodies, without the first 16 KiB of each")
        self._max_body_bytes = gauge("body_bytes_limit", "Limit on the bytes of request bodies")
        self._connections = gauge("connections", "Open HTTP connections")
        self._max_connections = gauge("connections_limit", "Limit on open HTTP connections of this replica")
        self.refused_connections = counter(
            "connections_refused", "HTTP connections that were refused or closed early", ["reason"]
        )
        self._refused_calls = counter("refused_calls", "Calls answered with 429 or 503, by error code", ["code"])
        self.swept = gauge("last_sweep_timestamp_seconds", "Unix time of the last completed sweep")
        self.clock_jumped = gauge("clock_jumped", "1 while the clock of Redis is too far ahead")
        self.store_risk = gauge("store_risk", "1 if the configuration of Redis can lose state in this way", ["risk"])

    def observe_waiting(self, waiting: Callable[[], int], limit: int) -> None:
        """Export the number of waiting clients and its limit."""
        self._waiting.set_function(waiting)
        self._max_waiting.set(limit)

    def observe_queued(self, queued: Callable[[], int]) -> None:
        """Export the number of calls that wait for their turn."""
        self._queued.set_function(queued)

    def observe_bodies(self, held: Callable[[], int], limit: int) -> None:
        """Export the number of bytes of request bodies, and its limit."""
        self._body_bytes.set_function(held)
        self._max_body_bytes.set(limit)

    def observe_connections(self, connections: Callable[[], int], limit: int, reasons: Iterable[str]) -> None:
        """Export the number of connections, its limit, and a counter for each reason to refuse a connection."""
        self._connections.set_function(connections)
        self._max_connections.set(limit)
        for reason in reasons:
            self.refused_connections.labels(reason)

    def observe_refused_calls(self, codes: Iterable[str]) -> None:
        """Export a counter for each code of an error that refuses calls."""
        for code in codes:
            self._refused_calls.labels(code)

    def refused(self, code: str) -> None:
        """Count a call that was refused with an error code."""
        self._refused_calls.labels(code).inc()

    def answered(self, call: str, status: int, seconds: float) -> None:
        """Record an answered call, with the time in seconds until its answer began."""
        self._call(call, status).observe(seconds)

    def reported(self, job: str) -> None:
        """Count a report."""
        child = self._reports_of.get(job)
        if child is None:
            child = self._reports_of[job] = self._reports.labels(job)
        child.inc()

    def keep_jobs(self, jobs: Collection[str]) -> None:
        """Remove the report counters of all jobs except these."""
        for job in self._reports_of.keys() - set(jobs):
            del self._reports_of[job]
            self._reports.remove(job)

    def command(self, name: str) -> "_Command":
        """Return a context manager that measures the duration and the errors of a store command."""
        return _Command(*self._command(name))


class _Command:
    """A context manager that measures one store command."""

    # A generator with the context managers of prometheus_client costs three times as much.
    __slots__ = ("_began", "_duration", "_errors")

    def __init__(self, duration: Histogram, errors: Counter) -> None:
        self._duration, self._errors = duration, errors

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._duration.observe(time.perf_counter() - self._began)
        if isinstance(error, RedisError):
            self._errors.inc()
