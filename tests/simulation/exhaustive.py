"""All orders of a small case: at most two queries with three batches between them, and a few faults at any point.

A state is the coordinator, the checkpoints, what each driver has learned since its start, and the answers so far.
A state that was reached before is not explored again. Drivers are generators, which cannot be copied, so each state is
reached again from the start by its path.
"""

import random
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from tests.simulation.checkpoint import Classify, Disk, Finish, Plan, Planned
from tests.simulation.coordinator import Coordinator
from tests.simulation.knowledge import Violation
from tests.simulation.loop import HostClock, Loop
from tests.simulation.observer import Observer
from tests.simulation.run import quiet
from tests.simulation.source import LAG_MS, Row
from tests.simulation.tasks import WAITING, Lock, Task
from tidegate_spark.errors import TidegateError
from tidegate_spark.protocol import effects
from tidegate_spark.protocol.connection import JobConnection
from tidegate_spark.protocol.effects import Effect, NoAnswer, Pause, Procedure, Send
from tidegate_spark.protocol.fold import Fold
from tidegate_spark.protocol.progress import Progress
from tidegate_spark.protocol.query import QueryProtocol
from tidegate_spark.protocol.retry import OnOutage, RetryPolicy
from tidegate_spark.protocol.settings import QuerySettings
from tidegate_spark.protocol.transport import HttpTransport

EventTimes = Mapping[str, tuple[int, ...]]
"""The event time of the only row of each batch, by query."""

THREE_BATCHES: EventTimes = {"q0": (100_000, 200_000), "q1": (150_000,)}
ONE_QUERY: EventTimes = {"q0": (100_000, 200_000, 300_000)}
TWO_QUERIES: EventTimes = {"q0": (100_000,), "q1": (150_000,)}
LONGEST_TAIL = 3
MAX_RUNS = 6
DOCUMENT: Any = {
    "policy": {"type": "limiting_lag", "lag_ms": LAG_MS},
    "idle_timeout_ms": None,
    "max_retention_ms": None,
    "max_skew_ms": None,
    "max_future_skew_ms": None,
}


@dataclass(frozen=True, slots=True)
class Budget:
    """Number of faults that may still occur."""

    crashes: int = 0
    answers_lost: int = 0
    tails_lost: int = 0


@dataclass(frozen=True, slots=True)
class Case:
    """The faults of a case, and its queries with the event times of their batches."""

    budget: Budget
    event_times: EventTimes = field(default_factory=lambda: THREE_BATCHES)


ANSWER_AND_TAIL, CRASH_AND_TAIL = Budget(answers_lost=1, tails_lost=1), Budget(crashes=1, tails_lost=1)
CASES: Mapping[str, Case] = {
    "no fault": Case(Budget()),
    "one crash": Case(Budget(crashes=1)),
    "one lost answer": Case(Budget(answers_lost=1)),
    "one lost tail": Case(Budget(tails_lost=1)),
    "one lost answer and one lost tail, one query": Case(ANSWER_AND_TAIL, ONE_QUERY),
    "one lost answer and one lost tail, two queries": Case(ANSWER_AND_TAIL, TWO_QUERIES),
    "one crash and one lost tail, one query": Case(CRASH_AND_TAIL, ONE_QUERY),
    "one crash and one lost tail, two queries": Case(CRASH_AND_TAIL, TWO_QUERIES),
}
"""The cases. Three batches with two faults have too many states, so the cases with two faults have one query
or two batches."""


@dataclass(frozen=True, slots=True)
class Move:
    """A step: a driver receives its answer (``query`` is set), or the coordinator loses its latest commands.

    Attributes:
        query: The query whose request is delivered; empty if the coordinator loses commands.
        fault: ``""``, ``"answer lost"``, ``"tail lost"``, ``"crash before"`` the request, ``"crash after"`` it, or
            ``"crash"`` after the answer.
        count: Number of local effects after the answer and before the crash, or of lost commands.
    """

    query: str = ""
    fault: str = ""
    count: int = 0


class Crashed(BaseException):
    """The driver died."""


class Driver:
    """A run of a query, up to its next request."""

    def __init__(self, world: "World", query: str, run: int) -> None:
        self._world, self._query, self._run_id = world, query, f"{query}-run-{run}"
        self.run, self.lock = run, Lock()
        self._event_times = world.event_times[query]
        self.pending: Send | None = None
        self._learned = 0
        self.local_effects = 0
        self.dies_after: int | None = None
        clock = HostClock(world.loop)
        transport = cast("type[HttpTransport]", lambda *_: None)
        outage = OnOutage(RetryPolicy(600), continues=False)
        connection = JobConnection("", "j", None, world.document, outage, clock, transport)
        self.protocol = QueryProtocol(QuerySettings(connection, query, ("s",)), self._run_id, owns_files=True)
        self.ended: str | None = None
        self._task = Task(self, self._main(), self._end)

    def _main(self) -> Procedure[None]:
        yield from self.protocol.start()
        while (batch_id := (yield Plan())) is not None:
            opened = yield from self.protocol.begin(batch_id)
            fold = yield Classify(opened)
            yield from self.protocol.report(opened, fold)
            yield from self.protocol.commit(opened, fold)
            yield Finish(batch_id)
        yield from self.protocol.heartbeat(0.0, max(self._world.disks[self._query].finished))

    def memory(self) -> Hashable:
        """Return a value of what the run knows: the fields of its objects, and what the current batch has learned."""
        protocol = self.protocol
        registration = protocol.registration
        objects = protocol, protocol.calls, registration, registration.begun, protocol.batches, protocol.backlog
        fields = [(name, repr(value)) for each in objects for name, value in vars(each).items() if _is_plain(value)]
        return hash((self.run, self._learned, self.pending is None, tuple(fields)))

    def heartbeat(self) -> None:
        """Send another heartbeat."""
        disk = self._world.disks[self._query]
        self._task = Task(self, self.protocol.heartbeat(0.0, max(disk.finished)), self._end)
        self.ended = None
        self._task.advance()

    def _end(self, _: Any, error: BaseException | None) -> None:
        if error is not None and not isinstance(error, TidegateError):
            raise error
        self.ended, self.pending = "" if error is None else str(error), None

    def go(self, value: Any = None, error: Exception | None = None) -> None:
        """Continue up to the next request."""
        self.local_effects = 0
        self._task.advance(value, error)

    def perform(self, task: Task, effect: Effect) -> Any:
        """Perform a local effect, or keep a request."""
        if isinstance(effect, Send):
            self.pending = effect
            self._sent = self._world.observer.sends(self._run_id, effect)
            return WAITING
        result = self._perform(effect)
        self._learned = hash((self._learned, repr(result)))
        self.local_effects += 1
        if self.local_effects == self.dies_after:
            raise Crashed
        return result

    def _perform(self, effect: Effect) -> Any:
        disk = self._world.disks[self._query]
        match effect:
            case Pause():
                return False
            case effects.ReadQueryId():
                return f"checkpoint-of-{self._query}"
            case Plan():
                self._learned = 0  # what a run knows between two batches is in its objects and its files
                batch_id = len(disk.finished)
                if batch_id == len(self._event_times):
                    return None
                disk.offsets.setdefault(batch_id, Planned(self._world.loop.now_ms, {}))
                return batch_id
            case Classify(opened):
                pinned = opened.stored.pinned_watermark
                time = self._event_times[opened.batch_id]
                late = pinned is not None and time < pinned
                row = Row(time, 0, 0, 0)
                self._world.observer.classified(self._query, self._run_id, opened, {"s": [row]}, {"s": [late]})
                return Fold(["s"], [time], [1], [0], [int(late)], [0], [0])
            case Finish(batch_id):
                return disk.finished.add(batch_id)
            case _:
                return disk.perform(effect)

    def deliver(self, fault: str) -> None:
        """Deliver the pending request, and continue with the answer unless a fault prevents it."""
        request = self.pending
        assert request is not None
        response = self._world.coordinator.handle(request)
        self._world.observer.handled(request, response)
        if fault == "answer lost":
            self._world.observer.receives(self._sent, NoAnswer("lost"))
            self._learned = hash((self._learned, "lost"))
            self.go(error=NoAnswer("lost"))
        elif fault != "crash after":
            self._world.observer.receives(self._sent, response)
            self._learned = hash((self._learned, response.body))
            self.go(response)


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, int | float | str | tuple | set | dict | Progress)


class World:
    """The state after a path."""

    def __init__(self, case: Case) -> None:
        random.seed(0)
        self.loop, self.budget, self.event_times = Loop(), case.budget, case.event_times
        self.document: Any = {**DOCUMENT, "expected_queries": list(self.event_times)}
        self.coordinator = Coordinator(self.loop, self.document, keeps_fingerprints=True)
        substreams = dict.fromkeys(self.event_times, ("s",))
        self.observer = Observer(self.loop, self.document, keeps_history=False, substreams=substreams)
        self.disks = {query: Disk() for query in self.event_times}
        self.drivers = {query: Driver(self, query, 1) for query in self.event_times}
        for driver in self.drivers.values():
            driver.go()

    def apply(self, move: Move) -> None:
        """Make a move."""
        if move.fault == "tail lost":
            self.budget = replace(self.budget, tails_lost=self.budget.tails_lost - 1)
            self.coordinator.lose_tail(move.count)
            self.observer.lost(f"{move.count} commands")
            return
        driver = self.drivers[move.query]
        if move.fault == "answer lost":
            self.budget = replace(self.budget, answers_lost=self.budget.answers_lost - 1)
        if "crash" in move.fault:
            self.budget = replace(self.budget, crashes=self.budget.crashes - 1)
            driver.dies_after = move.count or None
        try:
            if move.fault != "crash before":
                driver.deliver(move.fault)
            is_dead = "crash" in move.fault
        except Crashed:
            is_dead = True
        if is_dead or driver.ended:
            self._restart(move.query, driver)

    def _restart(self, query: str, driver: Driver) -> None:
        if driver.run == MAX_RUNS:
            raise Violation(f"Live: {query} ends again and again: {driver.ended}")
        self.drivers[query] = Driver(self, query, driver.run + 1)
        self.drivers[query].go()

    def moves(self) -> Iterator[Move]:
        """Yield the moves that are possible in this state."""
        for query, driver in self.drivers.items():
            if driver.pending is not None:
                yield Move(query)
                if self.budget.answers_lost:
                    yield Move(query, "answer lost")
                if self.budget.crashes:
                    yield Move(query, "crash before")
                    yield Move(query, "crash after")
                    yield from (Move(query, "crash", count) for count in range(1, 8))
        if self.budget.tails_lost and any(driver.pending for driver in self.drivers.values()):
            longest = min(LONGEST_TAIL, self.coordinator.length)
            yield from (Move("", "tail lost", count) for count in range(1, longest + 1))

    def fingerprint(self) -> Hashable:
        """Return a value that equal states share."""
        drivers = tuple(driver.memory() for driver in self.drivers.values())
        disks = tuple(
            (tuple(sorted(disk.documents.items())), len(disk.offsets), len(disk.finished))
            for disk in self.disks.values()
        )
        tail = self.coordinator.fingerprints(LONGEST_TAIL if self.budget.tails_lost else 0)
        return hash((self.budget, drivers, disks, tail, self.observer.fingerprint()))

    def check_end(self) -> None:
        """Check the watermark after all batches, and after one more heartbeat of each query."""
        for driver in self.drivers.values():
            driver.heartbeat()
            while driver.pending is not None and driver.ended is None:
                driver.deliver("")
        promised = min(times[-1] for times in self.event_times.values()) - LAG_MS
        job = self.coordinator.job
        if job is None or job.watermark != promised:
            raise Violation(f"Live: the watermark is {job and job.watermark}, and the policy promises {promised}")


@dataclass(frozen=True)
class Explored:
    """What was explored: the number of states and of complete orders, and the path to a violation, if any."""

    states: int
    ends: int
    violation: str | None = None
    path: Sequence[Move] = ()


def explore(case: Case, max_states: int | None = None) -> Explored:
    """Explore all orders of a case, depth first."""
    seen: set[Hashable] = set()
    ends = 0
    paths: list[tuple[Move, ...]] = [()]
    with quiet():
        while paths and (max_states is None or len(seen) < max_states):
            path = paths.pop()
            try:
                world = World(case)
                for move in path:
                    world.apply(move)
                while (fingerprint := world.fingerprint()) not in seen:
                    seen.add(fingerprint)
                    following = list(world.moves())
                    if not following:
                        ends += 1
                        world.check_end()
                        break
                    # Continue with the last move in this world. The other moves reach this state again by its path.
                    paths += [(*path, move) for move in following[:-1]]
                    path = (*path, following[-1])
                    world.apply(following[-1])
            except Violation as error:
                return Explored(len(seen), ends, str(error), path)
    return Explored(len(seen), ends)
