"""What the owner of a job decides: its policies, its throttle, its limits."""

from dataclasses import dataclass, field

from tidegate.domain.errors import InvalidConfig
from tidegate.domain.numbers import NumberRange
from tidegate.domain.pattern import matches
from tidegate.domain.policy import Policy
from tidegate.domain.throttle import FrameThrottle, NoThrottle, Throttle

MOST_OVERRIDES = 100
MOST_QUERIES = 1000
DELAY_HALF_LIFE_MS = 24 * 3_600_000


@dataclass(frozen=True, slots=True)
class Override:
    """A policy for the substreams whose names fit ``pattern``, in place of the job's."""

    pattern: str
    policy: Policy


@dataclass(frozen=True, slots=True)
class JobConfig:
    """The rules of one job. Limits are in milliseconds of processing time; None: off.

    ``overrides``: the first that fits a substream's name gives its policy, else ``policy`` does.
    ``idle_timeout_ms``: the observed silence after which a substream no longer holds the rest back.
    ``max_retention_ms``: how long slower substreams may hold back a watermark that one of them has reached.
    ``query_timeout_ms``: after so long without a word from a query, its substreams no longer hold the rest back.
    ``max_batch_hold_ms``: after so long an open batch no longer holds the emitted watermark at its pin.
    ``delay_half_life_ms``: while a substream's top moves on by so much, what is known of its delays fades to half.
    ``max_future_skew_ms``: event times further ahead of the clock than this move nothing.
    ``expected_queries``: each holds the watermark from the start, until its substreams are known.

    :raises InvalidConfig: for a limit that is not positive, or too many or repeated names.
    """

    policy: Policy
    throttle: Throttle = field(default_factory=NoThrottle)
    idle_timeout_ms: int | None = None
    max_retention_ms: int | None = None
    query_timeout_ms: int | None = None
    max_batch_hold_ms: int | None = None
    max_future_skew_ms: int | None = None
    overrides: tuple[Override, ...] = ()
    expected_queries: tuple[str, ...] = ()
    delay_half_life_ms: int = DELAY_HALF_LIFE_MS

    def __post_init__(self) -> None:
        limits = ("idle_timeout_ms", "max_retention_ms", "query_timeout_ms", "max_batch_hold_ms")
        for name in limits:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidConfig(name, f"{name} must be 1 ms or more, or null for never; it is {value}.")
        if self.delay_half_life_ms < 1:
            raise InvalidConfig("delay_half_life_ms", "delay_half_life_ms must be 1 or more.")
        if self.max_future_skew_ms is not None and self.max_future_skew_ms < 0:
            raise InvalidConfig("max_future_skew_ms", "max_future_skew_ms must be 0 or more, or null for off.")
        if len(self.overrides) > MOST_OVERRIDES:
            raise InvalidConfig("overrides", f"There may be {MOST_OVERRIDES} overrides; there are more.")
        if len(self.expected_queries) > MOST_QUERIES:
            raise InvalidConfig("expected_queries", f"{MOST_QUERIES} queries may be expected; there are more.")
        if len(set(self.expected_queries)) != len(self.expected_queries):
            raise InvalidConfig("expected_queries", "A query is expected twice; name each once.")

    def policies(self) -> tuple[Policy, ...]:
        """Every policy that a substream of this job may be under."""
        return self.policy, *(override.policy for override in self.overrides)

    def policy_of(self, substream: str) -> Policy:
        override = self._override_of(substream)
        return self.policy if override is None else override.policy

    def override_of(self, substream: str) -> str | None:
        """The pattern of the override that a substream is under, if it is under one."""
        override = self._override_of(substream)
        return None if override is None else override.pattern

    def _override_of(self, substream: str) -> Override | None:
        return next((override for override in self.overrides if matches(override.pattern, substream)), None)

    def joins_unexpected(self, query: str) -> bool:
        return query not in self.expected_queries

    def judged_at(self, time: int, numbers: NumberRange) -> int:
        """The event time that decides whether a row is late: its own, or, with frames, the last one of its window."""
        return self.throttle.frame.higher(time, numbers) - 1 if isinstance(self.throttle, FrameThrottle) else time

    def end_after(self, max_event_time: int, numbers: NumberRange) -> int:
        """Where an input ends whose highest event time is ``max_event_time``: the first frame boundary above it."""
        if isinstance(self.throttle, FrameThrottle):
            return self.throttle.frame.higher(max_event_time, numbers)
        return numbers.plus(max_event_time, 1)
