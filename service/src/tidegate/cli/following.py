"""Deliveries of frames: one for each generation of each frame, for all replicas of a consumer together.

Generations have a total order: by the time at which they were made, then by frame, then by number. The position of a
consumer in this order is in the coordinator. All generations up to it are delivered.

1. The follower takes the lease of the consumer. The answer has the time of the store. Generations that are made after
   the answer have this time or a later one, so those with an earlier time are all known.
2. It reads the generations after the position with an earlier time. The history names their frames. If the history no
   longer reaches back to the position, the follower reads all frames.
3. It delivers one after the other, and moves the position after each. A thread renews the lease meanwhile.
4. It waits for the next event about frames.

A process that ends between a delivery and the movement of the position delivers again, with the same key. A position
moves only forward, so a process that has lost its lease cannot undo the work of its successor.
"""

import os
import re
import secrets
import signal
import socket
import sys
import time as clock
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from threading import Event, Thread
from types import FrameType
from typing import Any, TypeVar

import typer

from tidegate.cli.coordinator import READ_S, RECONNECT_S, Coordinator, NoAnswer, Refusal, segment, try_again
from tidegate.domain.values import ID_CHARACTERS
from tidegate.escapes import visible
from tidegate.times import MS, format_time

Result = TypeVar("Result")

FINISHED = ("complete", "complete_with_exclusions")
"""States of frames that are delivered, unless the user names others."""
AT_ONCE = 1000
"""Number of frames, or records, that one call reads."""
MAX_RANGES = 50
"""Number of ranges of frames above which one call reads all frames between them."""
HELD_S = 2.0
"""Longest pause before a process asks again for the lease of another one."""
END_S = 5.0
"""Longest time that the release of the lease takes at the end."""
RENEWALS = 3
"""Number of renewals during one lease."""
DELETED = "job_deleted"
LOST = ("consumer_held", "consumer_taken_over", "consumer_ahead")
"""Codes of errors after which a process must take the lease again, and continue from the position of the consumer."""

Order = tuple[int, int, int]
"""Place of a generation in the order: ``at_ms``, start of the frame, and number."""


def say(text: str) -> None:
    """Print a message on standard error."""
    typer.echo(f"tidegate: {visible(text)}", err=True)


def iso_time(at_ms: int) -> str:
    """Return a time in UTC as ISO 8601, such as ``2026-03-31T01:00:00Z``."""
    return format_time(at_ms).replace(" ", "T")


@dataclass(frozen=True, slots=True)
class Delivery:
    """A generation of a frame that a consumer delivers.

    Attributes:
        job: Name of the job.
        frame: Members of the ``FrameStatus``, as of the delivery.
        generation: Members of the ``Generation``.
    """

    job: str
    frame: Mapping[str, Any]
    generation: Mapping[str, Any]

    @property
    def number(self) -> int:
        """The number of the generation."""
        return int(self.generation["generation"])

    @property
    def order(self) -> Order:
        """The place of the generation in the order of deliveries."""
        return self.generation["at_ms"], self.frame["start"], self.number

    @property
    def key(self) -> str:
        """The idempotency key: a repeated delivery has the same one."""
        return f"{self.job}__{iso_time(self.frame['start'])}__g{self.number}"

    def as_json(self) -> dict[str, Any]:
        """Return the delivery as a JSON object."""
        return {"key": self.key, "job": self.job, "generation": self.generation, "frame": self.frame}


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """End the process in order, with status 0, after SIGTERM or SIGINT."""

    def end(number: int, _: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)  # the end takes bounded time
        sys.exit(0)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class FrameFollower:
    """Delivers the frames of a job to a consumer.

    Args:
        coordinator: The coordinator.
        job: Name of the job.
        consumer: Name of the consumer. Of the processes with one name, one works at a time.
        states: States of the frames to deliver.
        first: A time in the first frame to deliver; None: the first frame that the job keeps.
        lease_ms: Time after which another process takes over if this one has died.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        job: str,
        consumer: str,
        states: Collection[str] = FINISHED,
        first: int | None = None,
        lease_ms: int = 30_000,
    ) -> None:
        self.job, self.consumer = job, consumer
        self._coordinator, self._states, self._first, self._lease_ms = coordinator, list(states), first, lease_ms
        self._path = f"/v1/jobs/{segment('job', job)}"
        self._of_consumer = f"{self._path}/consumers/{segment('consumer', consumer)}"
        self._owner = _process_id()
        self._position: Order | None = None
        self._known_ms = 0

    def deliver(self, act: Callable[[Delivery], None], once: bool = False) -> None:
        """Call ``act`` for each delivery, until the job is deleted or the process is ended.

        If ``act`` raises an exception, the position stays before its delivery.

        Args:
            act: Function that returns when a delivery is done.
            once: Whether to return when all deliveries that are due are done.
        """
        with ended_by_signals(), closing(self.deliveries(once)) as deliveries:
            for delivery in deliveries:
                act(delivery)

    def deliveries(self, once: bool = False) -> Generator[Delivery]:
        """Yield each delivery that is due, in order. The position moves when the caller asks for the next one."""
        has_lease = False
        try:
            while True:
                has_lease = self._take(waits=not once)
                if not has_lease:
                    return
                try:
                    with self._renewed():
                        yield from self._due() if once else self._follow()
                    return
                except Refusal as refusal:
                    has_lease = False
                    say(str(refusal))
                    if refusal.code == DELETED:
                        return
        finally:
            if has_lease:
                self._release()

    # -- the lease -------------------------------------------------------------------------------------------------

    def _take(self, *, waits: bool) -> bool:
        """Take the lease, and read the position; return whether this process has the lease.

        If another process has it, wait for its end, or return False at once.
        """
        is_told = False
        while True:
            try:
                consumer = self._patiently(lambda: self._consume(expected=LOST))["consumer"]
                break
            except Refusal as held:
                if not is_told:
                    owner, until = held.problem["owner"], format_time(held.problem["until_ms"])
                    say(f"{self.consumer} of {self.job}: process {owner} works until {until}, or renews its lease.")
                is_told = True
                if not waits:
                    return False
                clock.sleep(min(HELD_S, self._lease_ms / MS))
        if is_told:
            say(f"{self.consumer} of {self.job}: this process works from now on.")
        self._position = _order_of(consumer)
        return True

    def _consume(
        self, read_s: float = READ_S, expected: Collection[str] = (*LOST, DELETED), **members: Any
    ) -> Mapping[str, Any]:
        body = {"owner": self._owner, "lease_ms": self._lease_ms, **members}
        answer: Mapping[str, Any] = self._coordinator.attempt(
            "PUT", self._of_consumer, read_s, json=body, expected=expected
        )
        return answer

    def _move(self, to: Order) -> None:
        position = dict(zip(("at_ms", "start", "generation"), to, strict=True))
        self._patiently(lambda: self._consume(position=position))
        self._position = to

    def _release(self) -> None:
        # Without an answer, the lease ends by itself. The exit status remains that of the cause of the end.
        with suppress(NoAnswer, Refusal, typer.Exit):
            self._consume(END_S, release=True)

    @contextmanager
    def _renewed(self) -> Iterator[None]:
        """Renew the lease in a thread. If the renewal is refused, the next movement of the position is refused, too."""
        ended = Event()

        def renew() -> None:
            while not ended.wait(self._lease_ms / MS / RENEWALS):
                try:
                    self._consume(self._lease_ms / MS)
                except NoAnswer:
                    continue
                except (Refusal, typer.Exit):
                    return

        thread = Thread(target=renew, name="renew", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(END_S)

    # -- what is due -----------------------------------------------------------------------------------------------

    def _follow(self) -> Generator[Delivery]:
        """Yield deliveries when an event of the job says that there may be some, until the job is deleted."""
        last_id, answered, said = None, clock.monotonic(), ""
        while True:
            try:
                for event in self._coordinator.events(self.job, last_id, kind=["frame"]):
                    last_id, said = event.id or last_id, ""
                    if event.event == "deleted":
                        say("The job was deleted.")
                        return
                    if event.data and event.json().get("at_ms", self._known_ms) >= self._known_ms:
                        yield from self._due()
                    answered = clock.monotonic()
            except NoAnswer as error:
                said = try_again(error, answered, said)
            clock.sleep(RECONNECT_S)

    def _due(self) -> Generator[Delivery]:
        """Yield all deliveries that are due."""
        pause_s = 0.005
        while True:
            answer = self._patiently(self._consume)
            # The position has moved if another process has had the lease since.
            now_ms, self._position = answer["now_ms"], _order_of(answer["consumer"])
            orders = self._orders_after(self._position)
            for order in sorted(order for order in orders if order[0] < now_ms):
                delivery = self._delivery(order)
                if delivery is not None:
                    yield delivery
                    self._move(order)
            self._known_ms = now_ms
            if all(order[0] < now_ms for order in orders):
                return
            # Another generation may still be made at the same time. If the clock of the store went back, this takes
            # until it has caught up.
            clock.sleep(pause_s)
            pause_s = min(2 * pause_s, 1.0)

    def _orders_after(self, position: Order | None) -> set[Order]:
        """Return the places of all generations after a position."""
        found: set[Order] = set()
        for first, to in self._changed(position):
            page: Mapping[str, Any] = {"next": to}
            while True:
                parameters = {"from": first, "to": page["next"], "state": self._states, "limit": AT_ONCE}
                page = self._get("/frames", parameters)
                found.update(
                    (generation["at_ms"], frame["start"], generation["generation"])
                    for frame in page["frames"]
                    for generation in frame["generations"]
                )
                if page["next"] is None:
                    break
        return {order for order in found if position is None or order > position}

    def _changed(self, position: Order | None) -> list[tuple[int | None, int | None]]:
        """Return ranges of frames with all generations after a position: from a time to another (None: no bound)."""
        everything: list[tuple[int | None, int | None]] = [(self._first, None)]
        if position is None:
            return everything
        ranges: set[tuple[int, int]] = set()
        parameters = {"since": position[0], "kind": ["frame"], "limit": AT_ONCE}
        while True:
            page = self._get("/history", parameters)
            if page["kept_from_ms"] is None or page["kept_from_ms"] >= position[0]:
                return everything
            ranges.update((record["start"], record["end"]) for record in page["records"])
            if page["next"] is None:
                break
            parameters["before"] = page["next"]
        first = self._first
        kept = sorted((start if first is None else max(start, first), end) for start, end in ranges)
        kept = [(start, end) for start, end in kept if first is None or first < end]
        if len(kept) > MAX_RANGES:
            kept = [(kept[0][0], max(end for _, end in kept))]
        return [*kept]

    def _delivery(self, order: Order) -> Delivery | None:
        """Return the delivery at a place in the order; None if the job no longer has it, for example after a reset."""
        _, start, number = order
        try:
            # The time is that of a frame, in whatever unit the event times are.
            frame = self._get(f"/frames/{start}", {"force": True}, ("frame_not_found", "frames_not_declared"))["frame"]
        except Refusal as refusal:
            if refusal.code == DELETED:
                raise
            return None
        for generation in frame["generations"]:
            if generation["generation"] == number and frame["start"] == start and frame["state"] in self._states:
                return Delivery(self.job, frame, generation)
        return None

    def _get(self, path: str, parameters: Mapping[str, Any], expected: Collection[str] = ()) -> Any:
        known = (*expected, DELETED)
        return self._patiently(
            lambda: self._coordinator.attempt("GET", self._path + path, params=parameters, expected=known)
        )

    def _patiently(self, call: Callable[[], Result]) -> Result:
        """Return the result of a call. While no coordinator answers, try again, for at most ten minutes."""
        answered, said = clock.monotonic(), ""
        while True:
            try:
                return call()
            except NoAnswer as error:
                said = try_again(error, answered, said)
                clock.sleep(RECONNECT_S)


def _order_of(consumer: Mapping[str, Any]) -> Order | None:
    position = consumer["position"]
    return None if position is None else (position["at_ms"], position["start"], position["generation"])


def _process_id() -> str:
    """Return an id that no other process has, and by which an operator finds this one."""
    host = re.sub(f"[^{ID_CHARACTERS}]", "", socket.gethostname())[:80]
    return f"host-{host}-{os.getpid()}-{secrets.token_hex(4)}"
