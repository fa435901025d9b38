"""Waiting for a coordinator that does not answer: bounded, with growing and jittered pauses.

All calls may be repeated (the coordinator takes a repetition for what it is), so a call whose answer was lost is simply
sent again.
"""

import json
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tidegate_spark.errors import CoordinatorUnavailable, refused

log = logging.getLogger("tidegate")

AWAY = frozenset({429, 502, 503, 504})
"""Answers of a coordinator, or of what stands before it, that is not ready now but may be soon."""


OUTAGE_S = 1.0
"""A call that takes longer than this was waiting for the coordinator; less is the price of a call."""


def outage_since(began: float) -> float:
    """How much of the time since ``began`` (monotonic) a call was kept waiting by an outage, in seconds."""
    elapsed_s = time.monotonic() - began
    return elapsed_s if elapsed_s > OUTAGE_S else 0.0


class NoAnswer(Exception):
    """The call did not come through; the message says how."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait for an answer, in seconds, and how to space the attempts."""

    give_up_after_s: float
    first_pause_s: float = 0.1
    longest_pause_s: float = 5.0

    def call(self, what: str, send: Callable[[], tuple[int, bytes]]) -> dict[str, Any]:
        """Calls ``send`` (which gives status and body) until it answers, and returns the JSON object it answered.

        :raises Refused: for an answer that waiting does not change.
        :raises CoordinatorUnavailable: when there was none in time.
        """
        began = time.monotonic()
        pause_s = self.first_pause_s
        told = False
        while True:
            try:
                status, body = send()
                if 200 <= status < 300:
                    if told:
                        log.warning("The coordinator answers again after %.1f s (%s).", time.monotonic() - began, what)
                    answer: dict[str, Any] = json.loads(body) if body else {}
                    return answer
                if status not in AWAY:
                    raise refused(status, body)
                reason = str(refused(status, body))
            except NoAnswer as error:
                reason = str(error)
            waited_s = time.monotonic() - began
            if waited_s >= self.give_up_after_s:
                raise CoordinatorUnavailable(
                    f"{what}: no answer from the coordinator for {waited_s:.0f} s ({reason}); is the address right? "
                    "Nothing is lost: start the query again when the coordinator is back, or let it wait longer "
                    "(on_outage)."
                )
            if not told:
                told = True
                log.warning(
                    "%s: no answer from the coordinator (%s); is the address right? Waiting, for %.0f s at the most.",
                    what,
                    reason,
                    self.give_up_after_s,
                )
            time.sleep(min(random.uniform(pause_s / 2, pause_s), self.give_up_after_s - waited_s))
            pause_s = min(2 * pause_s, self.longest_pause_s)
