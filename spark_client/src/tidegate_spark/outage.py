"""Waiting for a coordinator that does not answer: bounded, with growing and jittered pauses.

All calls may be repeated (the coordinator takes a repetition for what it is), so a call whose answer was lost is simply
sent again.
"""

import json
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Literal

from tidegate_spark.clock import SYSTEM_CLOCK, Clock
from tidegate_spark.errors import CoordinatorUnavailable, InvalidUsage, refused

log = logging.getLogger("tidegate")

AWAY = frozenset({429, 502, 503, 504})
"""Answers of a coordinator, or of what stands before it, that is not ready now but may be soon."""


MOMENT_S = 5.0
"""How long somebody waits who can do otherwise: an executor's task, whose slot is then free for the driver waits in its
stead; a batch that may go on without its coordinator; a single attempt."""

LONGEST_ATTEMPT_S = 30.0
"""How long an attempt may take to be answered, where there is time for several."""

OUTAGE_S = 1.0
"""A call that takes longer than this was waiting for the coordinator; less is the price of a call."""


def outage_since(began: float, clock: Clock = SYSTEM_CLOCK) -> float:
    """Return the seconds since ``began`` (monotonic) if an outage delayed the call, else 0."""
    elapsed_s = clock.monotonic() - began
    return elapsed_s if elapsed_s > OUTAGE_S else 0.0


class NoAnswer(Exception):
    """The call did not come through; the message says how."""


def _answer(status: int, body: bytes) -> dict[str, Any]:
    """:raises Refused: for what is no coordinator's answer."""
    try:
        answer = json.loads(body) if body else {}
    except ValueError:
        raise refused(status, body) from None
    if not isinstance(answer, dict):
        raise refused(status, body)
    return answer


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait for an answer, in seconds, and how to space the attempts."""

    give_up_after_s: float
    first_pause_s: float = 0.1
    longest_pause_s: float = 5.0

    def at_most(self, give_up_after_s: float) -> "Patience":
        """The same, or less of it."""
        return replace(self, give_up_after_s=min(self.give_up_after_s, give_up_after_s))

    def call(
        self,
        what: str,
        send: Callable[[float], tuple[int, bytes]],
        stopped: Callable[[], bool] = lambda: False,
        clock: Clock = SYSTEM_CLOCK,
    ) -> dict[str, Any]:
        """Calls ``send`` until it answers, and returns the JSON object it answered.

        It gets how long it may take, in seconds, and gives status and body, or raises :class:`NoAnswer`. ``stopped``:
        whether nobody wants the answer any more; asked between attempts.

        :raises Refused: for an answer that waiting does not change.
        :raises CoordinatorUnavailable: when there was none in time.
        """
        began = clock.monotonic()
        pause_s = self.first_pause_s
        told = False
        while True:
            left_s = self.give_up_after_s - (clock.monotonic() - began)
            try:
                status, body = send(min(LONGEST_ATTEMPT_S, max(MOMENT_S, left_s)))
                if 200 <= status < 300:
                    if told:
                        log.warning("The coordinator answers again after %.1f s (%s).", clock.monotonic() - began, what)
                    return _answer(status, body)
                if status not in AWAY:
                    raise refused(status, body)
                reason = str(refused(status, body))
                state = f"the coordinator cannot serve the call now ({reason})."
            except NoAnswer as error:
                reason = str(error)
                state = f"no answer from the coordinator ({reason}); is the address right?"
            waited_s = clock.monotonic() - began
            if waited_s >= self.give_up_after_s:
                raise CoordinatorUnavailable(
                    f"{what}: {state} Gave up after {waited_s:.0f} s. Nothing is lost: start the query again when the "
                    "coordinator is back, or let it wait longer (on_outage).",
                    reason,
                )
            if stopped():
                raise CoordinatorUnavailable(f"{what}: the query was stopped while it waited ({reason}).", reason)
            if not told:
                told = True
                log.warning(
                    "%s: %s Waiting for at most %.0f s.",
                    what,
                    state,
                    self.give_up_after_s,
                )
            clock.sleep(min(random.uniform(pause_s / 2, pause_s), self.give_up_after_s - waited_s))
            pause_s = min(2 * pause_s, self.longest_pause_s)


ONE_ATTEMPT = Patience(0)
DEFAULT_PATIENCE = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class OnOutage:
    """What a batch does whose coordinator does not answer: it waits, for so long; or it ``goes_on`` after a moment.

    One that has no pin to go on with, for it is the first of its query, waits for so long in any case.
    """

    patience: Patience
    goes_on: bool

    @classmethod
    def of(cls, chosen: timedelta | Literal["continue"]) -> "OnOutage":
        """:raises InvalidUsage: for what is neither a duration nor ``"continue"``."""
        if chosen == "continue":
            return cls(Patience(DEFAULT_PATIENCE.total_seconds()), goes_on=True)
        if not isinstance(chosen, timedelta) or chosen < timedelta(0):
            raise InvalidUsage(f"on_outage takes how long a batch waits, a timedelta, or 'continue'; it is {chosen!r}.")
        return cls(Patience(chosen.total_seconds()), goes_on=False)

    @property
    def before_going_on(self) -> Patience:
        """How long a batch waits that may go on without its coordinator."""
        return self.patience.at_most(MOMENT_S)
