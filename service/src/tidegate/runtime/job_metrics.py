"""The metrics of jobs and substreams, for Prometheus. They are read from the store, and equal at every replica."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tidegate.domain.config import LIMITS
from tidegate.domain.health import health
from tidegate.domain.results import SubstreamRow
from tidegate.store.reads import Status

MS = 1000
Value = Callable[[Status], int | float | None]

# A job is `job_name`, because Prometheus itself uses the label `job`.
_GAUGES: dict[str, tuple[str, Value]] = {
    "watermark_timestamp_seconds": ("Emitted watermark", lambda s: _seconds(s.state.watermark)),
    "coalesced_watermark_timestamp_seconds": ("Coalesced watermark", lambda s: _seconds(s.state.coalesced_watermark)),
    "max_event_timestamp_seconds": ("Highest event time", lambda s: _seconds(s.summary.max_event_time)),
    "max_watermark_timestamp_seconds": (
        "Highest substream watermark that ever counted",
        lambda s: _seconds(s.summary.max_watermark),
    ),
    "clock_timestamp_seconds": ("Processing time of the coordinator", lambda s: _seconds(s.state.now_ms)),
    "last_contact_timestamp_seconds": (
        "Time of the last contact with a client",
        lambda s: _seconds(s.summary.last_contact_ms),
    ),
    "open_batches": ("Open batches", lambda s: s.summary.open_batches),
    "holds": ("Holds by operators", lambda s: len(s.summary.holds)),
    "missing_queries": ("Expected queries without substreams", lambda s: len(s.summary.missing_queries)),
    "complete": ("1 after the end of input", lambda s: int(s.state.complete)),
    "completeness_target": ("Share of rows on time that the policy aims at", lambda s: _target(s)),
}
_COUNTERS: dict[str, tuple[str, Callable[[Status], int]]] = {
    "emissions": ("Times the watermark moved", lambda s: s.summary.emissions),
    "throttled": ("Times the throttle withheld an advance", lambda s: s.summary.throttled),
    "future_rows": ("Rows and reports ignored as too far in the future", lambda s: s.summary.future_rows),
    "tokens_ignored": ("Invalid watermark tokens", lambda s: s.summary.tokens_ignored),
}
_LABELLED_COUNTERS: dict[str, tuple[str, str, Callable[[Status], Mapping[str, int]]]] = {
    "forced_advances": (
        "Times a limit let the watermark pass substreams",
        "limit",
        lambda s: dict.fromkeys(LIMITS, 0) | s.summary.limits,
    ),
    "rows": ("Committed rows", "class", lambda s: asdict(s.summary.counts)),
}


class Scrape(Collector):
    """The metrics of a replica and of its jobs, restricted to jobs with a prefix."""

    def __init__(self, replica: CollectorRegistry, jobs: "JobMetrics", prefix: str) -> None:
        self._replica, self._jobs, self._prefix = replica, jobs, prefix

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics."""
        for family in self._replica.collect():
            family.samples = [
                sample
                for sample in family.samples
                if sample.labels.get("job_name", self._prefix).startswith(self._prefix)
            ]
            yield family
        yield from self._jobs.collect()


class JobMetrics(Collector):
    """The metrics of jobs.

    Args:
        statuses: Status of each job; None if the store does not answer.
        writable: Whether the store takes writes.
        unreadable: Number of further jobs whose state cannot be read.
        stale_after_ms: Time without a contact after which a job is stale.
    """

    def __init__(
        self, statuses: Mapping[str, Status] | None, writable: bool, unreadable: int, stale_after_ms: int
    ) -> None:
        self._statuses, self._writable, self._unreadable = statuses, writable, unreadable
        self._stale_after_ms = stale_after_ms

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics."""
        up = self._statuses is not None and self._writable
        yield GaugeMetricFamily("tidegate_store_up", "1 if Redis answers and takes writes", int(up))
        if self._statuses is None:
            return
        yield GaugeMetricFamily("tidegate_jobs", "Number of jobs", len(self._statuses))
        yield GaugeMetricFamily("tidegate_unreadable_jobs", "Jobs whose state cannot be read", self._unreadable)
        for name, (help_text, value) in _GAUGES.items():
            yield _gauge(self._statuses, name, help_text, value)
        yield from self._states(self._statuses)
        for name, (help_text, count) in _COUNTERS.items():
            family = CounterMetricFamily(f"tidegate_job_{name}", help_text, labels=["job_name"])
            for job, status in self._statuses.items():
                family.add_metric([job], count(status))
            yield family
        for name, (help_text, label, counts) in _LABELLED_COUNTERS.items():
            family = CounterMetricFamily(f"tidegate_job_{name}", help_text, labels=["job_name", label])
            for job, status in self._statuses.items():
                for of, number in counts(status).items():
                    family.add_metric([job, of], number)
            yield family

    def _states(self, statuses: Mapping[str, Status]) -> Iterable[Metric]:
        held = GaugeMetricFamily(
            "tidegate_job_held_since_timestamp_seconds",
            "Unix time since which the watermark has its value, by the reason that holds it",
            labels=["job_name", "reason"],
        )
        healths = GaugeMetricFamily("tidegate_job_health", "1 for the health of the job", labels=["job_name", "health"])
        substreams = GaugeMetricFamily(
            "tidegate_job_substreams",
            "Substreams by state; blocked ones are active",
            labels=["job_name", "state"],
        )
        for job, status in statuses.items():
            held_by = status.state.held_by
            if held_by is not None:
                held.add_metric([job, held_by.reason], held_by.since_ms / MS)
            healths.add_metric([job, health(status.state, status.summary, self._stale_after_ms)], 1)
            for state in ("active", "idle", "done"):
                substreams.add_metric([job, state], getattr(status.summary, state))
        return held, healths, substreams


def _gauge(statuses: Mapping[str, Status], name: str, help_text: str, value: Value) -> Metric:
    family = GaugeMetricFamily(f"tidegate_job_{name}", help_text, labels=["job_name"])
    for job, status in statuses.items():
        number = value(status)
        if number is not None:
            family.add_metric([job], number)
    return family


def substream_metrics(job: str, rows: Iterable[SubstreamRow]) -> list[Metric]:
    """Return the metrics of substreams, always with the same names in the same order."""
    labels = ["job_name", "query", "substream"]
    watermark = GaugeMetricFamily("tidegate_substream_watermark_timestamp_seconds", "Watermark", labels=labels)
    max_event_time = GaugeMetricFamily(
        "tidegate_substream_max_event_timestamp_seconds", "Highest event time", labels=labels
    )
    last_event = GaugeMetricFamily(
        "tidegate_substream_last_event_timestamp_seconds", "Time of the last report", labels=labels
    )
    state = GaugeMetricFamily("tidegate_substream_state", "1 for the state of the substream", labels=[*labels, "state"])
    counts = CounterMetricFamily("tidegate_substream_rows", "Committed rows", labels=[*labels, "class"])
    for row in rows:
        of = [job, row.query, row.substream]
        for family, at_ms in (
            (watermark, row.watermark),
            (max_event_time, row.max_event_time),
            (last_event, row.last_event_ms),
        ):
            if at_ms is not None:
                family.add_metric(of, at_ms / MS)
        state.add_metric([*of, row.state], 1)
        for row_class, number in asdict(row.counts).items():
            counts.add_metric([*of, row_class], number)
    return [watermark, max_event_time, last_event, state, counts]


def _target(status: Status) -> float | None:
    target = status.config.get("policy", {}).get("target")
    return None if target is None else float(target)


def _seconds(at_ms: int | None) -> float | None:
    return None if at_ms is None else at_ms / MS
