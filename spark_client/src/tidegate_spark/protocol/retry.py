"""Retries: how long a call waits for the coordinator, and the pauses between its attempts.

This module decides; the shell sends and sleeps. So the same code runs in a driver, in an executor's task and in a
simulation. (Retry libraries such as tenacity and stamina sleep themselves.) Every call is idempotent.
"""

import json
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Literal

from tidegate_spark.clock import Clock
from tidegate_spark.errors import CoordinatorUnavailable, InvalidUsage, refusal_of
from tidegate_spark.protocol.effects import NoAnswer, Pause, Procedure, Request, Response, Send

log = logging.getLogger("tidegate")

RETRIED_STATUSES = frozenset({429, 502, 503, 504})
"""Statuses after which a call is retried, of a coordinator or of a proxy."""

SHORT_WAIT_S = 5.0
"""How long a call waits if there is an alternative: the driver sends a task's report, or a batch continues with
``on_outage="continue"``. Also the shortest timeout of an attempt."""

LONGEST_ATTEMPT_S = 30.0
"""The longest timeout of an attempt."""

OUTAGE_S = 1.0
"""A call that takes longer than this counts as waiting for the coordinator."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long to wait for an answer, and the pauses between attempts, in seconds."""

    give_up_after_s: float
    first_pause_s: float = 0.1
    longest_pause_s: float = 5.0

    def at_most(self, give_up_after_s: float) -> "RetryPolicy":
        """Return the policy with ``give_up_after_s`` as an upper limit."""
        return replace(self, give_up_after_s=min(self.give_up_after_s, give_up_after_s))

    def pause_s(self, attempts: int, left_s: float) -> float:
        """Return the pause after a number of attempts: exponential, jittered, at most ``left_s``."""
        longest = min(self.first_pause_s * 2.0 ** min(attempts - 1, 30), self.longest_pause_s)
        return min(random.uniform(longest / 2, longest), left_s)


ONE_ATTEMPT = RetryPolicy(0)
DEFAULT_ON_OUTAGE = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class OnOutage:
    """The behaviour of a batch if the coordinator does not answer.

    Attributes:
        policy: How long it waits. The first batch of a query always waits, because it has no pinned watermark.
        continues: Whether it continues without the coordinator after :data:`SHORT_WAIT_S`.
    """

    policy: RetryPolicy
    continues: bool

    @classmethod
    def of(cls, chosen: timedelta | Literal["continue"]) -> "OnOutage":
        """Return the user's choice; raise InvalidUsage if it is neither a duration nor ``"continue"``."""
        if chosen == "continue":
            return cls(RetryPolicy(DEFAULT_ON_OUTAGE.total_seconds()), continues=True)
        if not isinstance(chosen, timedelta) or chosen < timedelta(0):
            raise InvalidUsage(f"on_outage takes how long a batch waits, a timedelta, or 'continue'; it is {chosen!r}.")
        return cls(RetryPolicy(chosen.total_seconds()), continues=False)

    @property
    def policy_before_continuing(self) -> RetryPolicy:
        """The policy of a batch that may continue without the coordinator."""
        return self.policy.at_most(SHORT_WAIT_S)


_GAVE_UP = (
    "{what}: {state} Gave up after {waited_s:.0f} s. Nothing is lost: start the query again when the coordinator is "
    "back, or let it wait longer (on_outage)."
)


def outage_since(began: float, clock: Clock) -> float:
    """Return the seconds since ``began`` (monotonic) if an outage delayed the call, else 0."""
    elapsed_s = clock.monotonic() - began
    return elapsed_s if elapsed_s > OUTAGE_S else 0.0


def call(what: str, request: Callable[[], Request], policy: RetryPolicy, clock: Clock) -> Procedure[dict[str, Any]]:
    """Send a request until it is answered, and return the JSON object of the answer.

    Args:
        what: Name of the call, for the log and for errors.
        request: Creates the request of each attempt.
        policy: How long to try.
        clock: Measures the time.

    Raises:
        Refused: The coordinator refuses the call, and a retry would not help.
        CoordinatorUnavailable: No answer arrived in time, or the query was stopped.
    """
    began, attempts = clock.monotonic(), 0
    while True:
        left_s = policy.give_up_after_s - (clock.monotonic() - began)
        attempts += 1
        try:
            response: Response = yield Send(request(), min(LONGEST_ATTEMPT_S, max(SHORT_WAIT_S, left_s)))
            if response.status not in RETRIED_STATUSES:
                if attempts > 1:
                    log.warning("The coordinator answers again after %.1f s (%s).", clock.monotonic() - began, what)
                return _answer_of(response)
            reason = str(refusal_of(response.status, response.body))
            state = f"the coordinator cannot serve the call now ({reason})."
        except NoAnswer as error:
            reason = str(error)
            state = f"no answer from the coordinator ({reason}); is the address right?"
        waited_s = clock.monotonic() - began
        if waited_s >= policy.give_up_after_s:
            raise CoordinatorUnavailable(_GAVE_UP.format(what=what, state=state, waited_s=waited_s), reason)
        if attempts == 1:
            log.warning("%s: %s Waiting for at most %.0f s.", what, state, policy.give_up_after_s)
        if (yield Pause(policy.pause_s(attempts, policy.give_up_after_s - waited_s))):
            raise CoordinatorUnavailable(f"{what}: the query was stopped while it waited ({reason}).", reason)


def _answer_of(response: Response) -> dict[str, Any]:
    """Return the JSON object of a response; raise Refused if it has none, or its status is not 2xx."""
    try:
        answer = json.loads(response.body) if response.body else {}
    except ValueError:
        answer = None
    if not 200 <= response.status < 300 or not isinstance(answer, dict):
        raise refusal_of(response.status, response.body)
    return answer
