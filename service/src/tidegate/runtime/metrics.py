"""What a replica measures of itself, and what it tells of all jobs, for Prometheus.

A replica's own numbers are kept here, in a registry of its own; those of jobs are read from the store when somebody
asks, and are the same at every replica.
"""

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict
from types import TracebackType

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector
from redis.exceptions import RedisError

from tidegate import __version__
from tidegate.domain.config import LIMITS
from tidegate.domain.health import health
from tidegate.domain.results import SubstreamRow
from tidegate.store.reads import Status

MS = 1000
SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
STORE_SECONDS = SECONDS[:14]


class Metrics:
    """The registry of one replica."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        # Looking up what belongs to labels costs more than counting.
        self._commands: dict[str, tuple[Histogram, Counter]] = {}
        self._answered: dict[tuple[str, int], Histogram] = {}
        self._reported: dict[str, Counter] = {}
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        Info("tidegate_build", "The version that runs", registry=self.registry).info({"version": __version__})
        self._answers = Histogram(
            "tidegate_http_request_duration_seconds",
            "Until the answer began: how long calls took",
            ["call", "status"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self._store = Histogram(
            "tidegate_store_command_duration_seconds",
            "How long commands to Redis took, with the way there and back",
            ["command"],
            buckets=STORE_SECONDS,
            registry=self.registry,
        )
        self._store_errors = Counter(
            "tidegate_store_errors", "Commands that Redis did not carry out", ["command"], registry=self.registry
        )
        self._reports = Counter(
            "tidegate_reports",
            "Reports taken in by this replica, repetitions too",
            ["job_name"],
            registry=self.registry,
        )
        self._waiting = Gauge(
            "tidegate_waiting_clients", "Clients that wait for a watermark, or follow a job", registry=self.registry
        )
        self._most_waiting = Gauge(
            "tidegate_waiting_clients_limit", "So many clients may wait at this replica", registry=self.registry
        )
        self._connections = Gauge("tidegate_connections", "Open HTTP connections", registry=self.registry)
        self._connections_limit = Gauge(
            "tidegate_connections_limit", "Limit on open HTTP connections of this replica", registry=self.registry
        )
        self.refused_connections = Counter(
            "tidegate_connections_refused",
            "HTTP connections that were refused or cut off",
            ["reason"],
            registry=self.registry,
        )
        self.swept = Gauge(
            "tidegate_last_sweep_timestamp_seconds",
            "When this replica last looked at what time alone brings about",
            registry=self.registry,
        )
        self.clock_jumped = Gauge(
            "tidegate_clock_jumped", "1 while the clock of Redis cannot be believed", registry=self.registry
        )

    def count_waiting(self, waiting: Callable[[], int], most: int) -> None:
        """Asks ``waiting`` whenever somebody looks; ``most`` may wait."""
        self._waiting.set_function(waiting)
        self._most_waiting.set(most)

    def watch_connections(self, number: Callable[[], int], limit: int, reasons: Iterable[str]) -> None:
        """Export ``number`` of connections and its ``limit``, and a count for each reason to refuse one."""
        self._connections.set_function(number)
        self._connections_limit.set(limit)
        for reason in reasons:
            self.refused_connections.labels(reason)

    def answered(self, call: str, status: int, seconds: float) -> None:
        child = self._answered.get((call, status))
        if child is None:
            child = self._answered[call, status] = self._answers.labels(call, str(status))
        child.observe(seconds)

    def reported(self, job: str) -> None:
        child = self._reported.get(job)
        if child is None:
            child = self._reported[job] = self._reports.labels(job)
        child.inc()

    def forget(self, there: Collection[str]) -> None:
        """What was counted of jobs that are no more."""
        for job in self._reported.keys() - set(there):
            del self._reported[job]
            self._reports.remove(job)

    def command(self, name: str) -> AbstractContextManager[object]:
        """Goes around a command to the store."""
        if name not in self._commands:  # from the first time on there is a count of its errors, too
            self._commands[name] = self._store.labels(name), self._store_errors.labels(name)
        return _Timed(*self._commands[name])


class _Timed:
    __slots__ = ("_began", "_errors", "_took")

    def __init__(self, took: Histogram, errors: Counter) -> None:
        self._took, self._errors = took, errors

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._took.observe(time.perf_counter() - self._began)
        if isinstance(error, RedisError):
            self._errors.inc()


class Scrape(Collector):
    """What a replica measures, and what it tells of jobs; of both, what is of jobs with such a ``prefix``."""

    def __init__(self, replica: CollectorRegistry, jobs: "JobMetrics", prefix: str) -> None:
        self._replica, self._jobs, self._prefix = replica, jobs, prefix

    def collect(self) -> Iterable[Metric]:
        for family in self._replica.collect():
            family.samples = [
                sample
                for sample in family.samples
                if sample.labels.get("job_name", self._prefix).startswith(self._prefix)
            ]
            yield family
        yield from self._jobs.collect()


class JobMetrics(Collector):
    """What the store tells of jobs; ``statuses`` None: it does not answer. ``unreadable``: so many it has besides.

    A job is ``job_name``, for Prometheus itself has another use for ``job``.
    """

    def __init__(
        self, statuses: Mapping[str, Status] | None, writable: bool, unreadable: int, stale_after_ms: int
    ) -> None:
        self._statuses, self._writable, self._unreadable = statuses, writable, unreadable
        self._stale_after_ms = stale_after_ms

    def collect(self) -> Iterable[Metric]:
        up = self._statuses is not None and self._writable
        yield GaugeMetricFamily("tidegate_store_up", "1 if Redis answers and takes writes", int(up))
        if self._statuses is None:
            return
        yield GaugeMetricFamily("tidegate_jobs", "How many jobs there are", len(self._statuses))
        yield GaugeMetricFamily("tidegate_unreadable_jobs", "Jobs whose state cannot be read", self._unreadable)
        yield from self._of_jobs(self._statuses)

    def _of_jobs(self, statuses: Mapping[str, Status]) -> Iterable[Metric]:
        def gauge(name: str, text: str, value: Callable[[Status], int | float | None]) -> Metric:
            family = GaugeMetricFamily(f"tidegate_job_{name}", text, labels=["job_name"])
            for job, status in statuses.items():
                number = value(status)
                if number is not None:
                    family.add_metric([job], number)
            return family

        def counts(name: str, text: str, label: str, values: Callable[[Status], Mapping[str, int]]) -> Metric:
            family = CounterMetricFamily(f"tidegate_job_{name}", text, labels=["job_name", label])
            for job, status in statuses.items():
                for of, number in values(status).items():
                    family.add_metric([job, of], number)
            return family

        def count(name: str, text: str, value: Callable[[Status], int]) -> Metric:
            family = CounterMetricFamily(f"tidegate_job_{name}", text, labels=["job_name"])
            for job, status in statuses.items():
                family.add_metric([job], value(status))
            return family

        yield gauge("watermark_seconds", "The emitted watermark", lambda s: _s(s.state.watermark))
        yield gauge("coalesced_seconds", "The coalesced watermark", lambda s: _s(s.state.coalesced_watermark))
        yield gauge("top_seconds", "The highest event time seen", lambda s: _s(s.summary.max_event_time))
        yield gauge("lead_seconds", "The highest watermark of any substream", lambda s: _s(s.summary.max_watermark))
        yield gauge("clock_seconds", "The coordinator's processing time", lambda s: _s(s.state.now_ms))
        yield gauge("last_contact_seconds", "When a client last spoke for it", lambda s: _s(s.summary.last_contact_ms))
        held = GaugeMetricFamily(
            "tidegate_job_held_since_timestamp_seconds",
            "Since when the watermark has been where it is, by what holds it",
            labels=["job_name", "reason"],
        )
        stands = GaugeMetricFamily(
            "tidegate_job_health", "1 for how the job stands, as on the operators' page", labels=["job_name", "health"]
        )
        for job, status in statuses.items():
            held_by = status.state.held_by
            if held_by is not None:
                held.add_metric([job, held_by.reason], held_by.since_ms / MS)
            stands.add_metric([job, health(status.state, status.summary, self._stale_after_ms)], 1)
        yield held
        yield stands
        substreams = GaugeMetricFamily(
            "tidegate_job_substreams",
            "Substreams by state; those that are blocked are active",
            labels=["job_name", "state"],
        )
        for job, status in statuses.items():
            for state in ("active", "idle", "done"):
                substreams.add_metric([job, state], getattr(status.summary, state))
        yield substreams
        yield gauge("open_batches", "Batches that are open", lambda s: s.summary.open_batches)
        yield gauge("holds", "Operators' holds", lambda s: len(s.summary.holds))
        yield gauge("missing_queries", "Expected queries without substreams", lambda s: len(s.summary.missing_queries))
        yield gauge("complete", "1 after the end of input", lambda s: int(s.state.complete))
        yield gauge("completeness_target", "The share of rows that the job's policy aims at", _target)
        yield count("emissions", "How often the watermark moved", lambda s: s.summary.emissions)
        yield count("throttled", "How often the throttle kept back what was new", lambda s: s.summary.throttled)
        yield counts(
            "forced_advances",
            "How often a limit let the watermark pass somebody",
            "limit",
            lambda s: dict.fromkeys(LIMITS, 0) | s.summary.limits,
        )
        yield counts("rows", "Rows that commits accounted for", "class", lambda s: asdict(s.summary.counts))
        yield count(
            "future_rows", "Rows and reports left out as too far ahead of the clock", lambda s: s.summary.future_rows
        )
        yield count("tokens_ignored", "Watermark tokens that proved nothing", lambda s: s.summary.tokens_ignored)


def of_substreams(job: str, rows: Iterable[SubstreamRow]) -> list[Metric]:
    """Return the metrics of substreams, always of the same names in the same order."""
    labels = ["job_name", "query", "substream"]
    watermark = GaugeMetricFamily("tidegate_substream_watermark_timestamp_seconds", "Its watermark", labels=labels)
    max_event_time = GaugeMetricFamily(
        "tidegate_substream_max_event_timestamp_seconds", "Its highest event time", labels=labels
    )
    last = GaugeMetricFamily("tidegate_substream_last_event_timestamp_seconds", "When it last reported", labels=labels)
    state = GaugeMetricFamily("tidegate_substream_state", "1 for the state it is in", labels=[*labels, "state"])
    counted = CounterMetricFamily("tidegate_substream_rows", "Rows accounted for", labels=[*labels, "class"])
    for row in rows:
        of = [job, row.query, row.substream]
        for family, at_ms in (
            (watermark, row.watermark),
            (max_event_time, row.max_event_time),
            (last, row.last_event_ms),
        ):
            if at_ms is not None:
                family.add_metric(of, at_ms / MS)
        state.add_metric([*of, row.state], 1)
        for kind, number in asdict(row.counts).items():
            counted.add_metric([*of, kind], number)
    return [watermark, max_event_time, last, state, counted]


def _target(status: Status) -> float | None:
    target = status.config.get("policy", {}).get("target")
    return None if target is None else float(target)


def _s(at_ms: int | None) -> float | None:
    return None if at_ms is None else at_ms / MS
