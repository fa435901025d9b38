"""Policies: the rules that derive a substream's watermark from its event times.

A :class:`Policy` has the parameters of a rule. :meth:`Policy.start` returns the state of the rule for one substream.
The rules follow Hazelcast Jet's ``WatermarkPolicies`` step by step (see the conformance traces).
"""

from tidegate.domain.policy.base import Policy, PolicyState, ProcessingTime
from tidegate.domain.policy.limiting_lag import LimitingLag
from tidegate.domain.policy.limiting_lag_and_delay import LimitingLagAndDelay
from tidegate.domain.policy.limiting_lag_and_lull import LimitingLagAndLull
from tidegate.domain.policy.limiting_timestamp_and_wall_clock_lag import LimitingTimestampAndWallClockLag
from tidegate.domain.policy.reported import Reported
from tidegate.domain.policy.target_completeness import TargetCompleteness

POLICIES: tuple[type[Policy], ...] = (
    LimitingLag,
    LimitingLagAndDelay,
    LimitingLagAndLull,
    LimitingTimestampAndWallClockLag,
    TargetCompleteness,
    Reported,
)
"""All policies; every other list of policies derives from this one."""

__all__ = [
    "POLICIES",
    "LimitingLag",
    "LimitingLagAndDelay",
    "LimitingLagAndLull",
    "LimitingTimestampAndWallClockLag",
    "Policy",
    "PolicyState",
    "ProcessingTime",
    "Reported",
    "TargetCompleteness",
]
