"""What the owner of a job decides: its policy, its throttle, its limits."""

from dataclasses import dataclass, field

from tidegate.domain.errors import InvalidConfig
from tidegate.domain.policy import Policy
from tidegate.domain.throttle import NoThrottle, Throttle


@dataclass(frozen=True, slots=True)
class JobConfig:
    """The rules of one job.

    ``idle_timeout_ms`` is the observed silence, in milliseconds of processing time, after which a substream no longer
    holds the rest back; None: it holds for ever.

    :raises InvalidConfig: for a limit that is not positive.
    """

    policy: Policy
    throttle: Throttle = field(default_factory=NoThrottle)
    idle_timeout_ms: int | None = None

    def __post_init__(self) -> None:
        if self.idle_timeout_ms is not None and self.idle_timeout_ms < 1:
            raise InvalidConfig(
                "idle_timeout_ms",
                f"The idle timeout must be 1 ms or more, or null for never; it is {self.idle_timeout_ms}.",
            )
