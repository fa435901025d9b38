"""The network of a simulation: it delivers, loses, duplicates and delays requests and answers."""

from collections.abc import Callable
from random import Random

from tests.simulation.coordinator import Coordinator
from tests.simulation.faults import Faults
from tests.simulation.loop import Loop
from tidegate_spark.protocol.effects import NoAnswer, Response, Send

Receive = Callable[[Response | NoAnswer], None]
Handled = Callable[[Send, Response], None]
LONG_MS = 90_000
"""Longest delay of a message, which is longer than the timeout of any attempt."""


class Network:
    """The network between clients and the coordinator.

    Args:
        loop: The virtual time.
        random: The source of delays.
        faults: The faults.
        coordinator: The coordinator.
        handled: Called after each request that the coordinator has handled.
    """

    def __init__(self, loop: Loop, random: Random, faults: Faults, coordinator: Coordinator, handled: Handled) -> None:
        self._loop, self._random, self._faults = loop, random, faults
        self._coordinator, self._handled = coordinator, handled
        self._loses_until_ms = 0

    def lose_answers(self, duration_ms: int) -> None:
        """Lose every second answer for some time, as if the coordinator had lost its connections with its state."""
        self._loses_until_ms = self._loop.now_ms + duration_ms

    def send(self, request: Send, receive: Receive) -> None:
        """Send a request. ``receive`` gets the answer, or an error at the timeout, once."""
        call = _Call(receive)
        self._loop.after(int(1000 * request.timeout_s), call.end, NoAnswer("timed out"))
        if self._faults.happens("message duplicated"):
            self._loop.after(self._random.randrange(LONG_MS), self._deliver, request, None)
        if not self._faults.happens("request lost"):
            self._loop.after(self._delay_ms(), self._deliver, request, call)

    def _delay_ms(self) -> int:
        longest = LONG_MS if self._faults.happens("message delayed") else 5
        return self._random.randrange(longest)

    def _deliver(self, request: Send, call: "_Call | None") -> None:
        if self._coordinator.is_away:
            if call is not None:
                call.end(NoAnswer("connection refused"))
            return
        response = self._coordinator.handle(request)
        is_lost = self._loop.now_ms < self._loses_until_ms and self._random.random() < 0.5
        if call is not None and not is_lost and not self._faults.happens("answer lost"):
            self._loop.after(self._delay_ms(), call.end, response)
        self._handled(request, response)


class _Call:
    """A request that waits for its answer."""

    def __init__(self, receive: Receive) -> None:
        self._receive: Receive | None = receive

    def end(self, outcome: Response | NoAnswer) -> None:
        receive, self._receive = self._receive, None
        if receive is not None:
            receive(outcome)
