"""The model: an order of the operations in which the Python machine gives all answers that the clients received.

The job has the policy ``limiting_lag`` and no limits, so that only operations change it. An operation without an answer
may have been performed at any later time, or never. Answers fall into the order of their operations: an operation whose
answer arrived before another one was sent comes first, and the server's times do not go back.
"""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tests.faults.suite.checks import SLACK_S, Losses, Violation, answers
from tests.faults.suite.history import Call
from tests.faults.suite.plan import LAG_MS, JobPlan
from tests.support.machine import JobMachine
from tidegate.domain.config import JobConfig
from tidegate.domain.history import History, Timeline
from tidegate.domain.job import TokenClaim
from tidegate.domain.policies import LimitingLag

EFFECTS = ("report", "declare")
READS = ("watermark", "status")
DEPTH = 300
"""Number of latest decisions that the search may change."""
STEPS_PER_CALL = 20
"""Average number of steps per call after which the search gives up."""
LATE_S = 2.0
"""Longest time by which a proxy delays the repetition of a request."""


@dataclass
class Verdict:
    """The result for one job.

    Attributes:
        judged: Number of answers for which the search has found an order.
        undecided: Number of answers that the search has not judged, because it gave up or a loss came before them.
    """

    judged: int = 0
    undecided: int = 0
    violations: list[Violation] = field(default_factory=list)


@dataclass(frozen=True)
class _Node:
    """A state of the search: the machine after some operations, and the calls that are not yet explained.

    Attributes:
        first: Index before which all calls are explained.
        done: Indices of the explained calls from ``first`` on.
        owed: Indices of the performed operations whose answers show a later state with the same time.
        used: Indices of the performed operations without an answer.
    """

    machine: JobMachine
    first: int
    done: frozenset[int] = frozenset()
    owed: frozenset[int] = frozenset()
    used: frozenset[int] = frozenset()

    def key(self) -> tuple[object, ...]:
        """Return what decides whether the remaining calls can be explained from here."""
        machine = self.machine
        times = tuple((key, substream.max_event_time) for key, substream in machine.substreams.items())
        state = frozenset(times), machine.watermark, machine.coalesced_watermark, machine.evaluation_due
        return self.first, self.done, self.owed, *state


class Search:
    """The search for an order of the calls of one state epoch.

    Args:
        calls: The calls with an answer, in the order in which they were sent.
        uncertain: The calls without an answer, in the same order.
    """

    def __init__(self, calls: Sequence[Call], uncertain: Sequence[Call]) -> None:
        self._calls, self._uncertain = calls, uncertain
        self.furthest = 0
        self.gave_up = False

    def run(self) -> Call | None:
        """Return the call that no order explains; None if an order explains all calls, or the search gave up."""
        root = self._settle(_Node(_machine(self._calls), 0))
        path = [(root, self._choices(root))]
        stuck = root
        seen: set[tuple[object, ...]] = set()
        steps = STEPS_PER_CALL * len(self._calls) + 1000
        while path:
            node, choices = path[-1]
            explained = node.first + len(node.done)
            if explained >= self.furthest:
                self.furthest, stuck = explained, node
            if node.first == len(self._calls):
                return None
            steps -= 1
            if steps < 0:
                self.gave_up = True
                return None
            following = next(choices, None)
            if following is None:
                path.pop()
                continue
            key = following.key()
            if key not in seen:  # other orders of the same operations lead to the same state
                seen.add(key)
                path.append((following, self._choices(following)))
                del path[:-DEPTH]
        # Operations after the answer to this call are not possible before it is explained.
        return min((self._calls[index] for index in self._open(stuck, self._horizon(stuck))), key=lambda c: c.received)

    def _horizon(self, node: _Node) -> float:
        """Return the time by which the next operation was sent: an unexplained call is answered then."""
        horizon = float("inf")
        for index in range(node.first, len(self._calls)):
            call = self._calls[index]
            if call.sent > horizon:
                break
            if index not in node.done:
                horizon = min(horizon, call.received)
        return horizon

    def _open(self, node: _Node, horizon: float) -> Iterator[int]:
        for index in range(node.first, len(self._calls)):
            if self._calls[index].sent > horizon:
                return
            if index not in node.done:
                yield index

    def _choices(self, node: _Node) -> Iterator[_Node]:
        """Yield the states after each operation that may come next, the likeliest first."""
        horizon = self._horizon(node)
        found = [index for index in self._open(node, horizon) if self._is_effect(index) and index not in node.owed]
        owed_ms = {self._calls[index].answer["now_ms"] for index in node.owed}
        earliest = min((self._calls[index].answer["now_ms"] for index in found), default=None)
        for index in sorted(
            found, key=lambda index: (self._calls[index].answer["now_ms"], self._calls[index].received)
        ):
            now_ms = self._calls[index].answer["now_ms"]
            if now_ms == earliest and owed_ms <= {now_ms}:
                yield self._settle(self._perform(node, index))
        if node.machine.evaluation_due:
            machine = _copy(node.machine)
            machine.sweep(machine.now_ms)
            yield self._settle(_Node(machine, node.first, node.done, node.owed, node.used))
        for number, call in enumerate(self._uncertain):
            if call.sent > horizon:
                break
            if number not in node.used and _changes(node.machine, call):
                machine = _copy(node.machine)
                _apply(machine, call, machine.now_ms)
                yield self._settle(_Node(machine, node.first, node.done, node.owed, node.used | {number}))

    def _is_effect(self, index: int) -> bool:
        return self._calls[index].kind in EFFECTS

    def _perform(self, node: _Node, index: int) -> _Node:
        machine, call = _copy(node.machine), self._calls[index]
        _apply(machine, call, call.answer["now_ms"])
        return _Node(machine, node.first, node.done, node.owed | {index}, node.used)

    def _settle(self, node: _Node) -> _Node:
        """Explain all answers that show the current state. This changes nothing, so it is never wrong."""
        done, owed, first = set(node.done), set(node.owed), node.first
        state = node.machine.watermark, node.machine.coalesced_watermark
        while True:
            at = _Node(node.machine, first, frozenset(done), frozenset(owed), node.used)
            shown = [
                index
                for index in self._open(at, self._horizon(at))
                if (index in owed or not self._is_effect(index)) and _shown(self._calls[index]) == state
            ]
            if not shown:
                return at
            done.update(shown)
            owed.difference_update(shown)
            while first in done:
                done.discard(first)
                first += 1


def _shown(call: Call) -> tuple[int | None, int | None]:
    return call.answer["watermark"], call.answer["coalesced_watermark"]


def _machine(calls: Sequence[Call]) -> JobMachine:
    config = JobConfig(policy=LimitingLag(LAG_MS), max_future_skew_ms=None)
    return JobMachine(config, min((call.answer["now_ms"] for call in calls), default=0))


def _copy(machine: JobMachine) -> JobMachine:
    """Return a copy that shares the configuration, and has no records."""
    machine.history, machine.timeline = History(), Timeline()
    return copy.deepcopy(machine, {id(machine.config): machine.config})


def _apply(machine: JobMachine, call: Call, now_ms: int) -> None:
    claim = call.claim
    if call.kind == "declare":
        machine.declare("", call.body["substreams"], now_ms, call.event_times())
    else:
        token = None if claim is None else TokenClaim(*claim)
        machine.report(call.event_times(), now_ms, token=token)


def _changes(machine: JobMachine, call: Call) -> bool:
    """Return whether an operation would change the machine."""
    known = {name: substream.max_event_time for (_, name), substream in machine.substreams.items()}
    if call.kind == "declare":
        return any(known.get(name) is None for name in call.body["substreams"])
    restores = call.claim is not None and (machine.watermark is None or call.claim[1] > machine.watermark)
    return restores or any((known.get(name) or at - 1) < at for name, at in call.event_times().items())


def check_model(job: JobPlan, calls: Sequence[Call], losses: Losses) -> Verdict:
    """Check all answers of a job without queries, one state epoch after the other."""
    assert not job.writers, f"the model has no queries, and job {job.job} has some"
    verdict = Verdict()
    relevant = [call for call in answers(calls) if call.kind in (*EFFECTS, *READS)]
    uncertain = [call for call in calls if call.kind in EFFECTS and call.is_uncertain]
    for epoch in dict.fromkeys(call.answer["state_epoch"] for call in relevant):
        of_epoch = sorted((c for c in relevant if c.answer["state_epoch"] == epoch), key=lambda call: call.sent)
        judged = _before_loss(of_epoch, losses)
        verdict.undecided += len(of_epoch) - len(judged)
        repeated = [c for c in relevant if c.kind in EFFECTS and c.answer["state_epoch"] != epoch]
        late = [c for c in repeated if judged and judged[0].sent - LATE_S < c.received < judged[0].sent + LATE_S]
        search = Search(judged, sorted([*uncertain, *late], key=lambda call: call.sent))
        wrong = search.run() if judged else None
        if wrong is not None:
            near = [c for c in judged if c.sent < wrong.received and c.received > wrong.sent and c is not wrong]
            text = f"no order of the operations gives W = {wrong.answer['watermark']}, C = {_shown(wrong)[1]}"
            verdict.violations.append(Violation("model", text, [wrong, *near]))
        verdict.judged += search.furthest
        verdict.undecided += len(judged) - search.furthest if search.gave_up else 0
    return verdict


def _before_loss(calls: Sequence[Call], losses: Losses) -> Sequence[Call]:
    """Return the calls of an epoch until a loss of the end of the store's file, from which on the state is unknown."""
    tails = [loss for loss in losses.losses if loss.window_s < float("inf")]
    ends = [loss.start - loss.window_s - SLACK_S for loss in tails if loss.start > calls[0].sent]
    end = min(ends, default=float("inf"))
    return [call for call in calls if call.received < end]
