"""Prometheus metrics of jobs and substreams. Every replica reads them from the store, so all export equal values."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from tidegate.domain.config import LIMITS
from tidegate.domain.views import SubstreamStatus
from tidegate.store.replies import Status
from tidegate.store.states import ServerState

MS = 1000
Value = Callable[[Status], float | None]
Kind = type[GaugeMetricFamily] | type[CounterMetricFamily]

# The label of a job's name is `job_name`, because Prometheus itself uses the label `job`.
_GAUGES: dict[str, tuple[str, Value]] = {
    "watermark_timestamp_seconds": ("Emitted watermark", lambda s: _seconds(s.state.watermark)),
    "coalesced_watermark_timestamp_seconds": ("Coalesced watermark", lambda s: _seconds(s.state.coalesced_watermark)),
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
    "complete": ("1 after the end of input", lambda s: int(s.state.complete)),
    "max_lag_seconds": (
        "Watermark lag above which the health of the job is lagging",
        lambda s: _seconds(s.config.get("max_lag_ms")),
    ),
    "completeness_target": ("Share of rows on time that the policy targets", lambda s: _target(s)),
}
_COUNTERS: dict[str, tuple[str, Value]] = {
    "emissions": ("Emissions of the watermark", lambda s: s.summary.emissions),
    "throttled": ("Advances that the throttle withheld", lambda s: s.summary.throttled),
    "future_rows": ("Ignored rows and reports with event times too far in the future", lambda s: s.summary.future_rows),
    "tokens_ignored": ("Invalid watermark tokens", lambda s: s.summary.tokens_ignored),
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
        lambda s: {state: getattr(s.summary, state) for state in ("active", "idle", "done")},
    ),
    "forced_advances": (
        CounterMetricFamily,
        "Number of times that a limit acted",
        "limit",
        lambda s: dict.fromkeys(LIMITS, 0) | s.summary.limits,
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


def job_metrics(statuses: Mapping[str, Status] | None, unreadable: int, stale_after_ms: int) -> Iterator[Metric]:
    """Yield the metrics of jobs.

    Args:
        statuses: Status of each job, or None if the store does not answer.
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
    healths = [([job, s.health(stale_after_ms)], 1) for job, s in statuses.items()]
    yield _family(GaugeMetricFamily, "health", "1 for the current health of the job", ["health"], healths)


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
