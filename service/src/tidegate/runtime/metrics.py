"""Prometheus metrics of a replica itself, and of jobs and substreams, which every replica reads from the store."""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cache, partial
from itertools import accumulate
from types import TracebackType

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from redis.exceptions import RedisError

from tidegate import __version__
from tidegate.domain.config import LIMITS
from tidegate.domain.frames import DELAYS_MS
from tidegate.domain.job import COUNTED_STATES
from tidegate.domain.views import SubstreamStatus
from tidegate.store.functions import ServerState
from tidegate.store.replies import Status

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


MS = 1000
FRAME_STATES = ("complete", "complete_with_exclusions", "empty", "corrected")
Value = Callable[[Status], float | None]
Kind = type[GaugeMetricFamily] | type[CounterMetricFamily]

# The label of a job's name is `job_name`, because Prometheus itself uses the label `job`.
_GAUGES: dict[str, tuple[str, Value]] = {
    "watermark_timestamp_seconds": ("Emitted watermark", lambda s: _seconds(s.state.watermark)),
    "coalesced_watermark_timestamp_seconds": ("Coalesced watermark", lambda s: _seconds(s.state.coalesced_watermark)),
    "written_watermark_timestamp_seconds": ("Written watermark", lambda s: _seconds(s.state.written_watermark)),
    "max_event_timestamp_seconds": ("Highest event time", lambda s: _seconds(s.summary.max_event_time)),
    "max_watermark_timestamp_seconds": (
        "Highest watermark of the job's substreams",
        lambda s: _seconds(s.summary.max_watermark),
    ),
    "clock_timestamp_seconds": ("Current processing time, by the clock of Redis", lambda s: _seconds(s.state.now_ms)),
    "last_contact_timestamp_seconds": (
        "Time of the last contact with a client",
        lambda s: _seconds(s.summary.last_contact_ms),
    ),
    "open_batches": ("Open batches", lambda s: s.summary.open_batches),
    "holds": ("Holds by operators", lambda s: len(s.summary.holds)),
    "missing_queries": ("Expected queries without substreams", lambda s: len(s.summary.missing_queries)),
    "open_frames": (
        "Frames that have begun and are not finished",
        lambda s: None if s.summary.frames is None else s.summary.frames.open,
    ),
    "complete": ("1 after the end of input", lambda s: int(s.state.complete)),
    "max_lag_seconds": (
        "Watermark lag above which the health of the job is lagging",
        lambda s: _seconds(s.config.get("max_lag_ms")),
    ),
    "arrival_delay_seconds": (
        "Time after the end of a frame for which the watermark waits for silent substreams (arrival_target)",
        lambda s: None if s.summary.arrivals is None else _seconds(s.summary.arrivals.delay_ms),
    ),
    "completeness_target": ("Share of rows on time that the policy targets", lambda s: _target(s)),
}
_COUNTERS: dict[str, tuple[str, Value]] = {
    "emissions": ("Emissions of the watermark", lambda s: s.summary.emissions),
    "throttled": ("Advances that the throttle withheld", lambda s: s.summary.throttled),
    "future_rows": ("Ignored rows and reports with event times too far in the future", lambda s: s.summary.future_rows),
    "tokens_ignored": ("Invalid watermark tokens", lambda s: s.summary.tokens_ignored),
    "arrivals": (
        "Rows whose arrival delay is known (arrival_target)",
        lambda s: None if s.summary.arrivals is None else s.summary.arrivals.rows,
    ),
    "late_arrivals": (
        "Rows that have arrived after the arrival delay in force",
        lambda s: None if s.summary.arrivals is None else s.summary.arrivals.late,
    ),
}
_BY_LABEL: dict[str, tuple[Kind, str, str, Callable[[Status], Mapping[str, float]]]] = {
    "held_since_timestamp_seconds": (
        GaugeMetricFamily,
        "Unix time of the last movement of the watermark, by the reason of its holder",
        "reason",
        lambda s: {s.state.held_by.reason: s.state.held_by.since_ms / MS} if s.state.held_by else {},
    ),
    "substreams": (
        GaugeMetricFamily,
        "Substreams by state. Blocked substreams count as active",
        "state",
        lambda s: {state: getattr(s.summary, state) for state in COUNTED_STATES},
    ),
    "forced_advances": (
        CounterMetricFamily,
        "Number of times that a limit acted",
        "limit",
        lambda s: dict.fromkeys(LIMITS, 0) | s.summary.limits,
    ),
    "unread_offsets": (
        GaugeMetricFamily,
        "Offsets of Kafka that the latest committed batch left unread, by query",
        "query",
        lambda s: s.summary.unread_offsets,
    ),
    "skipped_offsets": (
        CounterMetricFamily,
        "Offsets of Kafka that were never read, by query",
        "query",
        lambda s: s.summary.skipped_offsets,
    ),
    "frames": (
        CounterMetricFamily,
        "Frames that were finished, by state, and corrections of finished frames",
        "state",
        lambda s: {} if s.summary.frames is None else dict.fromkeys(FRAME_STATES, 0) | s.summary.frames.finished,
    ),
    "rows": (CounterMetricFamily, "Committed rows", "class", lambda s: asdict(s.summary.counts)),
}


def replica_metrics(registry: CollectorRegistry, prefix: str) -> Iterator[Metric]:
    """Yield the metrics of a replica. The samples of jobs include only jobs whose names begin with the prefix."""
    for family in registry.collect():
        family.samples = [
            sample for sample in family.samples if sample.labels.get("job_name", prefix).startswith(prefix)
        ]
        yield family


def store_metrics(servers: Iterable[ServerState], *, is_up: bool) -> Iterator[Metric]:
    """Yield the metrics of the store. A Redis Cluster has further metrics for each primary."""
    help_text = "1 if Redis answers, accepts writes, and has enough replicas"
    yield GaugeMetricFamily("tidegate_store_up", help_text, int(is_up))
    up = GaugeMetricFamily(
        "tidegate_store_server_up", "1 if the primary of a Redis Cluster answers and accepts writes", labels=["server"]
    )
    buckets = GaugeMetricFamily("tidegate_store_buckets", "Buckets of a primary of a Redis Cluster", labels=["server"])
    for state in servers:
        if state.server:
            up.add_metric([state.server], int(state.error is None))
            buckets.add_metric([state.server], state.buckets)
    yield from (up, buckets)


def job_metrics(
    statuses: Mapping[str, Status] | None,
    held: Mapping[str, Sequence[tuple[Sequence[str], float]]],
    unreadable: int,
    stale_after_ms: int,
) -> Iterator[Metric]:
    """Yield the metrics of jobs.

    Args:
        statuses: Status of each job, or None if the store does not answer.
        held: For each job, the holders of its watermark (kind, query, name), and their shares of the last hour.
        unreadable: Number of further jobs whose state cannot be read.
        stale_after_ms: Time without client contact after which a job is stale.
    """
    if statuses is None:
        return
    yield GaugeMetricFamily("tidegate_jobs", "Number of jobs", len(statuses))
    yield GaugeMetricFamily("tidegate_unreadable_jobs", "Jobs whose state cannot be read", unreadable)
    for kind, values in ((GaugeMetricFamily, _GAUGES), (CounterMetricFamily, _COUNTERS)):
        for name, (help_text, value) in values.items():
            numbers = [([job], value(status)) for job, status in statuses.items()]
            yield _family(kind, name, help_text, [], numbers)
    for name, (kind, help_text, label, counts) in _BY_LABEL.items():
        labelled = [([job, of], number) for job, status in statuses.items() for of, number in counts(status).items()]
        yield _family(kind, name, help_text, [label], labelled)
    yield _frame_delays(statuses)
    shares = [([job, *of], share) for job in statuses for of, share in held.get(job, ())]
    yield _family(
        GaugeMetricFamily,
        "held_ratio",
        "Share of the last hour for which a holder held the watermark; the three longest holders",
        ["kind", "query", "name"],
        shares,
    )
    healths = [([job, s.health(stale_after_ms)], 1) for job, s in statuses.items()]
    yield _family(GaugeMetricFamily, "health", "1 for the current health of the job", ["health"], healths)


def _frame_delays(statuses: Mapping[str, Status]) -> Metric:
    """Return the delays of frames, from their end to the time at which they were finished."""
    family = HistogramMetricFamily(
        "tidegate_job_frame_delay_seconds",
        "Time from the end of a frame until it was finished",
        labels=["job_name"],
    )
    bounds = [*(str(bound_ms / MS) for bound_ms in DELAYS_MS), "+Inf"]
    for job, status in statuses.items():
        if status.summary.frames is not None:
            counts = accumulate(status.summary.frames.delays)
            buckets = [(bound, float(count)) for bound, count in zip(bounds, counts, strict=True)]
            family.add_metric([job], buckets, status.summary.frames.delay_sum_ms / MS)
    return family


def _family(
    kind: Kind, name: str, help_text: str, labels: list[str], values: Iterable[tuple[Sequence[str], float | None]]
) -> Metric:
    family = kind(f"tidegate_job_{name}", help_text, labels=["job_name", *labels])
    for of, number in values:
        if number is not None:
            family.add_metric(of, number)
    return family


def substream_metrics(job: str, rows: Iterable[SubstreamStatus]) -> list[Metric]:
    """Return the metrics of substreams. The names and the order of the metrics do not depend on the rows."""
    labels = ["job_name", "query", "substream"]
    watermark = GaugeMetricFamily("tidegate_substream_watermark_timestamp_seconds", "Watermark", labels=labels)
    max_event_time = GaugeMetricFamily(
        "tidegate_substream_max_event_timestamp_seconds", "Highest event time", labels=labels
    )
    last_event = GaugeMetricFamily(
        "tidegate_substream_last_event_timestamp_seconds", "Time of the last report", labels=labels
    )
    state = GaugeMetricFamily(
        "tidegate_substream_state", "1 for the current state of the substream", labels=[*labels, "state"]
    )
    counts = CounterMetricFamily("tidegate_substream_rows", "Committed rows", labels=[*labels, "class"])
    times = (watermark, max_event_time, last_event)
    for row in rows:
        of = [job, row.query, row.substream]
        for family, at_ms in zip(times, (row.watermark, row.max_event_time, row.last_event_ms), strict=True):
            if at_ms is not None:
                family.add_metric(of, at_ms / MS)
        state.add_metric([*of, row.state], 1)
        for row_class, number in asdict(row.rows).items():
            counts.add_metric([*of, row_class], number)
    return [watermark, max_event_time, last_event, state, counts]


def _target(status: Status) -> float | None:
    target = status.config.get("policy", {}).get("target")
    return None if target is None else float(target)


def _seconds(at_ms: int | None) -> float | None:
    return None if at_ms is None else at_ms / MS
