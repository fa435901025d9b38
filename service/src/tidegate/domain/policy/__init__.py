"""Policies: how the event times of a substream become its watermark.

A :class:`Policy` is the rule with its parameters; :meth:`Policy.start` returns the state in which it follows one
substream. Each policy has its own module. The rules are those of Hazelcast Jet's ``WatermarkPolicies``, step by step
(see the conformance traces).
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

POLICY_LIMITS = tuple(policy.limit for policy in POLICIES if policy.limit is not None)
"""The parameters of policies that let a watermark pass its lag."""

__all__ = [
    "POLICIES",
    "POLICY_LIMITS",
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
