"""The retries of a call: the attempts, the pauses between attempts, and the error after the last attempt.

The runner sends requests and sleeps, so this code runs in a driver, in an executor's task and in a simulation. (Retry
libraries such as tenacity and stamina sleep themselves.) Every call is idempotent.
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
from tidegate_spark.protocol.effects import Effect, NoAnswer, Pause, Procedure, Response, Result, Send, run

log = logging.getLogger("tidegate")

RETRIED_STATUSES = frozenset({429, 502, 503, 504})
"""HTTP statuses of a coordinator or a proxy after which a call is retried."""

SHORT_WAIT_S = 5.0
"""Maximum wait in seconds of a call with an alternative, and minimum timeout of an attempt.

The alternatives: the driver sends the report of a task, or a batch continues without the coordinator
(``on_outage="continue"``).
"""

LONGEST_ATTEMPT_S = 30.0
"""Maximum timeout of an attempt, in seconds."""

OUTAGE_S = 1.0
"""Duration in seconds above which a call counts as waiting for the coordinator."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The maximum wait for an answer, and the pauses between attempts, in seconds."""

    give_up_after_s: float
    first_pause_s: float = 0.1
    longest_pause_s: float = 5.0

    def pause_s(self, attempts: int, left_s: float, at_least_s: float) -> float:
        """Return the pause after an attempt: exponential, with jitter, at least ``at_least_s``, at most ``left_s``."""
        longest = min(self.first_pause_s * 2.0 ** min(attempts - 1, 30), self.longest_pause_s)
        return min(at_least_s + random.uniform(longest / 2, longest), left_s)


ONE_ATTEMPT = RetryPolicy(0)
DEFAULT_ON_OUTAGE = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class OnOutage:
    """The behaviour of a batch if the coordinator does not answer.

    Attributes:
        policy: The retry policy. The first batch of a query always follows it, because it has no pinned watermark.
        continues: Whether the batch continues without the coordinator after :data:`SHORT_WAIT_S`.
    """

    policy: RetryPolicy
    continues: bool

    @classmethod
    def of(cls, chosen: timedelta | Literal["continue"]) -> "OnOutage":
        """Return the behaviour for a user's choice: a duration that is not negative, or ``"continue"``.

        Raises:
            InvalidUsage: If the choice is neither of these.
        """
        if chosen == "continue":
            return cls(RetryPolicy(DEFAULT_ON_OUTAGE.total_seconds()), continues=True)
        if not isinstance(chosen, timedelta) or chosen < timedelta(0):
            raise InvalidUsage(f"on_outage must be a timedelta of 0 or more, or 'continue'; it is {chosen!r}.")
        return cls(RetryPolicy(chosen.total_seconds()), continues=False)

    @property
    def first_policy(self) -> RetryPolicy:
        """The policy of a call. A query that may continue without the coordinator waits only briefly."""
        if not self.continues:
            return self.policy
        return replace(self.policy, give_up_after_s=min(self.policy.give_up_after_s, SHORT_WAIT_S))


_GAVE_UP = (
    "{what}: {state} Gave up after {waited_s:.0f} s. Nothing is lost: start the query again when the coordinator "
    "answers, or set a longer on_outage."
)


def outage_since(began: float, clock: Clock) -> float:
    """Return the seconds since ``began`` (monotonic) if an outage delayed the call, else 0."""
    elapsed_s = clock.monotonic() - began
    return elapsed_s if elapsed_s > OUTAGE_S else 0.0


def call(what: str, request: Callable[[float], Send], policy: RetryPolicy, clock: Clock) -> Procedure[dict[str, Any]]:
    """Send a request until the coordinator answers, and return the JSON object of the answer.

    Args:
        what: Name of the call, for the log and for errors.
        request: Creates the request of each attempt, with its timeout in seconds.
        policy: The retry policy.
        clock: The clock that measures the time.

    Raises:
        Refused: If the coordinator refuses the call, and a retry would not help.
        CoordinatorUnavailable: If no answer arrives in time, or the query is stopped.
    """
    began, attempts = clock.monotonic(), 0
    while True:
        left_s = policy.give_up_after_s - (clock.monotonic() - began)
        attempts += 1
        at_least_s = 0.0
        try:
            response: Response = yield request(min(LONGEST_ATTEMPT_S, max(SHORT_WAIT_S, left_s)))
            if response.status not in RETRIED_STATUSES:
                if attempts > 1:
                    log.warning("The coordinator answers again after %.1f s (%s).", clock.monotonic() - began, what)
                return _answer_of(response)
            reason = str(refusal_of(response.status, response.body))
            state = f"the coordinator cannot serve the call now ({reason})."
            at_least_s = _retry_after_s(response)
        except NoAnswer as error:
            reason = str(error)
            state = f"no answer from the coordinator ({reason}); check its address."
        waited_s = clock.monotonic() - began
        if waited_s >= policy.give_up_after_s:
            raise CoordinatorUnavailable(_GAVE_UP.format(what=what, state=state, waited_s=waited_s), reason)
        if attempts == 1:
            log.warning("%s: %s Waiting for at most %.0f s.", what, state, policy.give_up_after_s)
        if (yield Pause(policy.pause_s(attempts, policy.give_up_after_s - waited_s, at_least_s))):
            raise CoordinatorUnavailable(f"{what}: the query was stopped while it waited ({reason}).", reason)


def run_call(procedure: Procedure[Result], send: Callable[[Send], Response], clock: Clock) -> Result:
    """Run a procedure that only sends requests and pauses, outside of any query.

    Args:
        procedure: The procedure.
        send: Performs the effect :class:`Send`.
        clock: Performs the effect :class:`Pause`.
    """

    def perform(effect: Effect) -> Response | bool:
        match effect:
            case Send():
                return send(effect)
            case Pause(seconds):
                clock.sleep(seconds)
                return False
            case _:
                raise TypeError(f"a call outside of a query cannot perform {effect!r}")

    return run(procedure, perform)


def _retry_after_s(response: Response) -> float:
    """Return the seconds in ``Retry-After``; 0 if the header is missing or contains a date."""
    value = response.retry_after or ""
    return float(value) if value.isdecimal() else 0.0


def _answer_of(response: Response) -> dict[str, Any]:
    """Return the JSON object of a response; raise Refused if it has none, or its status is not 2xx."""
    try:
        answer = json.loads(response.body) if response.body else {}
    except ValueError:
        answer = None
    if not 200 <= response.status < 300 or not isinstance(answer, dict):
        raise refusal_of(response.status, response.body)
    return answer
