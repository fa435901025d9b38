"""Retries: how long a call waits for the coordinator, and how its attempts are spaced.

The policy only decides. The shell sends and sleeps, so that the same code runs in a driver, in the task of an executor
and in a simulation. (Retry libraries such as tenacity and stamina sleep by themselves.) Every call may be repeated:
the coordinator recognizes a repetition.
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
"""Answers of a coordinator, or of a proxy before it, that may be ready soon."""

SHORT_WAIT_S = 5.0
"""How long a call waits if there is an alternative: a task leaves its report to the driver, a batch with
``on_outage="continue"`` goes on. It is also the least time that one attempt gets."""

LONGEST_ATTEMPT_S = 30.0
"""How long one attempt may take if there is time for several."""

OUTAGE_S = 1.0
"""A call that takes longer than this waited for the coordinator; less is what a call costs."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long to wait for an answer, and the pauses between attempts, in seconds."""

    give_up_after_s: float
    first_pause_s: float = 0.1
    longest_pause_s: float = 5.0

    def at_most(self, give_up_after_s: float) -> "RetryPolicy":
        """Return the same policy, giving up after ``give_up_after_s`` at the latest."""
        return replace(self, give_up_after_s=min(self.give_up_after_s, give_up_after_s))

    def pause_s(self, attempts: int, left_s: float) -> float:
        """Return the pause after so many attempts: doubled each time, jittered, and never longer than ``left_s``."""
        longest = min(self.first_pause_s * 2.0 ** min(attempts - 1, 30), self.longest_pause_s)
        return min(random.uniform(longest / 2, longest), left_s)


ONE_ATTEMPT = RetryPolicy(0)
DEFAULT_ON_OUTAGE = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class OnOutage:
    """What a batch does if the coordinator does not answer.

    Attributes:
        policy: How long it waits. The first batch of a query waits in any case, for it has no pinned watermark.
        continues: Whether it goes on without the coordinator after :data:`SHORT_WAIT_S`.
    """

    policy: RetryPolicy
    continues: bool

    @classmethod
    def of(cls, chosen: timedelta | Literal["continue"]) -> "OnOutage":
        """Return what a user chose.

        Raises:
            InvalidUsage: If it is neither a duration nor ``"continue"``.
        """
        if chosen == "continue":
            return cls(RetryPolicy(DEFAULT_ON_OUTAGE.total_seconds()), continues=True)
        if not isinstance(chosen, timedelta) or chosen < timedelta(0):
            raise InvalidUsage(f"on_outage takes how long a batch waits, a timedelta, or 'continue'; it is {chosen!r}.")
        return cls(RetryPolicy(chosen.total_seconds()), continues=False)

    @property
    def policy_before_continuing(self) -> RetryPolicy:
        """How long a batch waits that may go on without the coordinator."""
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
        request: Makes the request, anew for each attempt.
        policy: How long to try.
        clock: Measures how long that was.

    Raises:
        Refused: The answer is a refusal that waiting does not change.
        CoordinatorUnavailable: There was no answer in time, or the query was stopped.
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
    """Return the JSON object of a response.

    Raises:
        Refused: The status is not 2xx, or the body is not a JSON object.
    """
    try:
        answer = json.loads(response.body) if response.body else {}
    except ValueError:
        answer = None
    if not 200 <= response.status < 300 or not isinstance(answer, dict):
        raise refusal_of(response.status, response.body)
    return answer
