"""What a seed decides: the jobs, their clients, the deployment, and the order of the faults."""

import random
from dataclasses import dataclass
from typing import Any

LAG_MS = 5_000
BASE_MS = 1_700_000_000_000
"""Event time at the start of a run. Event times then advance with the time of the machine."""
FRAME_MS, CORRECTION_MS = 2_000, 300
"""Length of a frame, and the time for which its changes are collected."""
JITTER_MS = 2_000
"""Largest distance of a reported event time behind the advance of time."""


@dataclass(frozen=True)
class JobPlan:
    """A job and its clients.

    Attributes:
        job: Name of the job.
        reporters: The substreams of each client that reports without batches.
        writers: The substreams of each query.
    """

    job: str
    reporters: dict[str, tuple[str, ...]]
    writers: dict[str, tuple[str, ...]]

    @property
    def config(self) -> dict[str, Any]:
        """The configuration of the job: a lag, and no limits. A job with queries has frames."""
        config: dict[str, Any] = {"policy": {"type": "limiting_lag", "lag_ms": LAG_MS}, "max_future_skew_ms": None}
        frames = {"every": FRAME_MS, "offset_ms": 0, "time_zone": None, "correction_delay_ms": CORRECTION_MS}
        return config | ({"expected_queries": list(self.writers), "frames": frames} if self.writers else {})

    @property
    def direct(self) -> list[str]:
        """The substreams of reports without batches."""
        return [name for names in self.reporters.values() for name in names]

    def substreams(self) -> list[tuple[str | None, str]]:
        """Return all substreams, each with its query."""
        of_queries = [(query, name) for query, names in self.writers.items() for name in names]
        return [*((None, name) for name in self.direct), *of_queries]


@dataclass(frozen=True)
class Plan:
    """The decisions of one seed."""

    seed: int
    appendfsync: str
    replicas: int
    jobs: tuple[JobPlan, ...]
    continues: bool = False

    @classmethod
    def of(cls, seed: int, continues: bool = False) -> "Plan":
        """Return the plan of a seed; with ``continues``, batches continue without the coordinator."""
        rng = random.Random(seed)
        jobs = [
            JobPlan(f"direct-{n}", {f"direct-{n}-{m}": (f"s{m}-a", f"s{m}-b") for m in range(rng.randint(2, 3))}, {})
            for n in range(2)
        ]
        queries = {"departures": ("HNL", "ORD"), "arrivals": ("JFK", "LAX", "SFO")}
        jobs.append(JobPlan("batches", {"batches-0": ("gate",)}, queries))
        return cls(seed, rng.choice(("always", "everysec")), rng.randint(2, 3), tuple(jobs), continues)


def event_time(elapsed_s: float) -> int:
    """Return the event time to which all clients have advanced after this time of a run."""
    return BASE_MS + int(1000 * elapsed_s)
