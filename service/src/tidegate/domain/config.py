"""The configuration of a job: policy, throttle, limits, overrides."""

from dataclasses import dataclass, field

from tidegate.domain.declared import check_declared, declarations, parameter
from tidegate.domain.errors import InvalidConfig
from tidegate.domain.pattern import matches
from tidegate.domain.policy import POLICY_LIMITS, Policy
from tidegate.domain.throttle import NoThrottle, Throttle

MAX_OVERRIDES = 100
MAX_EXPECTED_QUERIES = 1000
DELAY_HALF_LIFE_MS = 24 * 3_600_000


@dataclass(frozen=True, slots=True)
class Override:
    """A policy for the substreams whose names match ``pattern``, instead of the job's policy."""

    pattern: str
    policy: Policy


@dataclass(frozen=True, slots=True)
class JobConfig:
    """The configuration of one job. Limits are in milliseconds of processing time; None turns one off.

    ``overrides``: the first one whose pattern matches a substream gives its policy. ``expected_queries``: each holds
    the watermark from the start until its substreams are known.

    Raises:
        InvalidConfig: For a limit outside its range, or for too many or repeated names.
    """

    policy: Policy
    throttle: Throttle = field(default_factory=NoThrottle)
    idle_timeout_ms: int | None = parameter(
        "Silence after which a substream is idle and no longer holds the watermark. Outages do not count.",
        minimum=1,
        example=300_000,
        default=None,
        effect="it becomes idle",
    )
    max_retention_ms: int | None = parameter(
        "How long slower substreams may hold back a watermark that one substream has reached.",
        minimum=1,
        example=900_000,
        default=None,
        effect="the watermark passes it",
    )
    query_timeout_ms: int | None = parameter(
        "Time without a call of a query after which its substreams no longer hold the watermark.",
        minimum=1,
        example=600_000,
        default=None,
        effect="the watermark no longer waits for its query",
    )
    max_batch_hold_ms: int | None = parameter(
        "Time after which an open batch no longer holds the emitted watermark at its pinned watermark.",
        minimum=1,
        example=3_600_000,
        default=None,
        effect="the watermark no longer waits for it",
    )
    max_future_skew_ms: int | None = parameter(
        "Event times further ahead of the clock than this are set aside. Use null unless event times are epoch "
        "milliseconds.",
        minimum=0,
        example=86_400_000,
        default=None,
    )
    overrides: tuple[Override, ...] = ()
    expected_queries: tuple[str, ...] = ()
    delay_half_life_ms: int = parameter(
        "Progress of event time in which the weight of known delays decays to half.",
        minimum=1,
        example=86_400_000,
        default=DELAY_HALF_LIFE_MS,
    )

    def __post_init__(self) -> None:
        """Validate limits, overrides and expected queries."""
        check_declared(self)
        if len(self.overrides) > MAX_OVERRIDES:
            raise InvalidConfig("overrides", f"A job may have {MAX_OVERRIDES} overrides; there are more.")
        if len(self.expected_queries) > MAX_EXPECTED_QUERIES:
            problem = f"A job may expect {MAX_EXPECTED_QUERIES} queries; there are more."
            raise InvalidConfig("expected_queries", problem)
        if len(set(self.expected_queries)) != len(self.expected_queries):
            raise InvalidConfig("expected_queries", "A query is listed twice; list each query once.")

    def policies(self) -> tuple[Policy, ...]:
        """Return every policy that a substream of this job may have."""
        return self.policy, *(override.policy for override in self.overrides)

    def policy_of(self, substream: str) -> Policy:
        """Return the policy of a substream."""
        override = self._override_of(substream)
        return self.policy if override is None else override.policy

    def override_of(self, substream: str) -> str | None:
        """Return the pattern of the override that applies to a substream; None without one."""
        override = self._override_of(substream)
        return None if override is None else override.pattern

    def _override_of(self, substream: str) -> Override | None:
        return next((override for override in self.overrides if matches(override.pattern, substream)), None)


JOB_LIMITS = tuple(name for name, declared in declarations(JobConfig).items() if declared.effect)
LIMITS = JOB_LIMITS + POLICY_LIMITS
"""Settings that let C pass a substream, or W pass a batch; each time one acts is recorded."""
