"""The configuration of a job: policy, throttle, limits, overrides and expected queries."""

from dataclasses import dataclass, field
from typing import Any

from tidegate.domain.errors import InvalidConfig
from tidegate.domain.parameters import check_declared, effects, parameter
from tidegate.domain.pattern import matches
from tidegate.domain.policy import POLICIES, Policy
from tidegate.domain.throttle import NoThrottle, Throttle

MAX_OVERRIDES = 100
MAX_EXPECTED_QUERIES = 1000
MAX_WILDCARDS = 4
"""Maximum number of ``*`` in a pattern. Redis serves no other job while it matches the names of a report."""
DAY_MS = 24 * 3_600_000


@dataclass(frozen=True, slots=True)
class Override:
    """A policy for the substreams whose names match ``pattern``, instead of the job's policy."""

    pattern: str
    policy: Policy


def _limit(description: str, *, example: int, effect: str) -> Any:
    """Return a field for a limit that is off by default."""
    return parameter(description, minimum=1, example=example, default=None, effect=effect)


@dataclass(frozen=True, slots=True)
class JobConfig:
    """The configuration of one job. Limits are in milliseconds of processing time; None turns a limit off.

    The first of the ``overrides`` whose pattern matches a substream sets its policy. Each of the ``expected_queries``
    holds the watermark from the start until its substreams are known. ``freezes_idle`` is for the conformance traces:
    watermarks of idle substreams then do not follow the clock.

    Raises:
        InvalidConfig: If a limit is outside its range, the job has too many overrides or queries, or a query is
            repeated.
    """

    policy: Policy
    throttle: Throttle = field(default_factory=NoThrottle)
    idle_timeout_ms: int | None = _limit(
        "Observed silence after which a substream no longer holds the watermark. Null: off.",
        example=900_000,
        effect="it becomes idle",
    )
    max_retention_ms: int | None = _limit(
        "Maximum time for which slower substreams hold the watermark below the fastest substream. Null: off.",
        example=7_200_000,
        effect="retention excludes it",
    )
    query_timeout_ms: int | None = _limit(
        "Time without contact after which the substreams of a query no longer hold the watermark. Null: off.",
        example=3_600_000,
        effect="the watermark advances without its query",
    )
    max_batch_hold_ms: int | None = _limit(
        "Time after which an open batch no longer holds the watermark. Null: off.",
        example=86_400_000,
        effect="the watermark advances without it",
    )
    max_future_skew_ms: int | None = parameter(
        "Maximum distance of event times ahead of the clock; the coordinator ignores later event times. Set null if "
        "event times are not Unix milliseconds.",
        example=DAY_MS,
        default=None,
        request_default=DAY_MS,
    )
    max_lag_ms: int | None = parameter(
        "Lag of the watermark behind processing time above which the health of the job is `lagging`. It moves no "
        "watermark. Null: off.",
        minimum=1,
        example=3_600_000,
        default=None,
    )
    overrides: tuple[Override, ...] = ()
    expected_queries: tuple[str, ...] = ()
    delay_half_life_ms: int = parameter(
        "Half-life of the weight of measured delays, in milliseconds of event time.",
        minimum=1,
        example=DAY_MS,
        default=DAY_MS,
    )
    freezes_idle: bool = False

    def __post_init__(self) -> None:
        """Validate limits, overrides and expected queries."""
        check_declared(self)
        if len(self.overrides) > MAX_OVERRIDES:
            raise InvalidConfig("overrides", f"A job may have at most {MAX_OVERRIDES} overrides; remove some.")
        if len(self.expected_queries) > MAX_EXPECTED_QUERIES:
            problem = f"A job may expect at most {MAX_EXPECTED_QUERIES} queries; remove some."
            raise InvalidConfig("expected_queries", problem)
        if len(set(self.expected_queries)) != len(self.expected_queries):
            raise InvalidConfig("expected_queries", "A query is listed twice; list each query once.")

    def check_patterns(self) -> None:
        """Check the patterns of a new configuration. Older versions stored patterns with more wildcards.

        Raises:
            InvalidConfig: If a pattern has too many wildcards.
        """
        for number, override in enumerate(self.overrides):
            if override.pattern.count("*") > MAX_WILDCARDS:
                problem = f"A pattern may have at most {MAX_WILDCARDS} wildcards (*); {override.pattern!r} has more."
                raise InvalidConfig(f"overrides.{number}.substreams", problem)

    def policies(self) -> tuple[Policy, ...]:
        """Return every policy that a substream of this job may have."""
        return self.policy, *(override.policy for override in self.overrides)

    def policy_of(self, substream: str) -> Policy:
        """Return the policy of a substream."""
        override = self._override_of(substream)
        return self.policy if override is None else override.policy

    def override_of(self, substream: str) -> str | None:
        """Return the pattern of the override that applies to a substream; None if no override applies."""
        override = self._override_of(substream)
        return None if override is None else override.pattern

    def _override_of(self, substream: str) -> Override | None:
        return next((override for override in self.overrides if matches(override.pattern, substream)), None)


JOB_LIMITS = effects(JobConfig)
"""Limits of a job by name, each with its effect."""

POLICY_LIMITS = effects(*POLICIES)
"""Parameters of policies that override the lag, each with its effect."""

LIMITS = JOB_LIMITS | POLICY_LIMITS
"""Settings that let C pass a substream or W pass a batch. The journal records each time a limit acts."""
