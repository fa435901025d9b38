"""One run of the fault suite: inject faults in the order of the seed, and check the history."""

import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.suite import accounting, checks
from tests.faults.suite.checks import Losses, Violation
from tests.faults.suite.frames import check_events, check_frame_rows, check_frames
from tests.faults.suite.history import Call
from tests.faults.suite.injections import FAULTS, possible, reset
from tests.faults.suite.model import check_model
from tests.faults.suite.plan import JobPlan
from tests.faults.suite.world import LIVE_S, NotLive, World

CHECK_EVERY = 10
"""Number of faults after which the history so far is checked."""
SHOWN = 16
"""Maximum number of calls of the history around a violation."""
EXPECTED_ERRORS = frozenset({"query_fenced"})
"""Errors of writers that a fault may cause: a newer run on the same checkpoint replaces the older one."""

Print = Callable[[str], None]


@dataclass
class Row:
    """The results of one fault: how often it was injected, its longest recovery and the violations after it."""

    times: int = 0
    longest_s: float = 0.0
    violations: int = 0


@dataclass
class Outcome:
    """The result of a run."""

    seed: int
    appendfsync: str
    start: float = 0.0
    rows: dict[str, Row] = field(default_factory=lambda: {name: Row() for name in FAULTS})
    violations: list[Violation] = field(default_factory=list)
    calls: int = 0
    judged: int = 0
    undecided: int = 0
    elapsed_s: float = 0.0

    @property
    def injected(self) -> int:
        """The number of injected faults."""
        return sum(row.times for row in self.rows.values())

    def document(self) -> dict[str, Any]:
        """Return the result as a JSON object."""
        return {
            "seed": self.seed,
            "appendfsync": self.appendfsync,
            "seconds": round(self.elapsed_s),
            "calls": self.calls,
            "model": {"judged": self.judged, "undecided": self.undecided},
            "faults": {name: vars(row) for name, row in self.rows.items()},
            "violations": [{"guarantee": found.guarantee, "text": found.text} for found in self.violations],
        }

    def table(self) -> str:
        """Return the result as a table."""
        lines = [f"{'fault':28} {'times':>5} {'longest recovery':>16} {'violations':>10}"]
        for name, row in self.rows.items():
            recovery = f"{row.longest_s:.1f} s" if row.times else "not injected"
            lines.append(f"{name:28} {row.times:5} {recovery:>16} {row.violations:10}")
        lines.append(f"{self.injected} faults in {self.elapsed_s:.0f} s, {self.calls} calls")
        lines.append(f"The model explains {self.judged} answers; {self.undecided} are after a loss or undecided.")
        lines.append(f"{len(self.violations)} violations")
        return "\n".join(lines)


class Run:
    """A run in a world.

    Args:
        world: The processes.
        show: Prints a line of progress.
    """

    def __init__(self, world: World, show: Print) -> None:
        self._world, self._show = world, show
        self._rng = random.Random(f"{world.plan.seed}-faults")
        self._known: set[tuple[str, str]] = set()
        self._injected: list[tuple[float, str]] = []
        self.outcome = Outcome(world.plan.seed, world.plan.appendfsync, world.start)

    def run(self, minutes: float, only: Sequence[str] = ()) -> Outcome:
        """Inject faults for this time, and check the history; ``only`` names the faults to inject."""
        world, outcome = self._world, self.outcome
        self._show(f"seed {outcome.seed}: {outcome.appendfsync}, {world.plan.replicas} replicas, {world.directory}")
        self._show(f"started: all watermarks move after {world.recover():.1f} s")
        order = self._order(list(only) or possible(world))
        deadline = time.monotonic() + 60 * minutes
        while time.monotonic() < deadline:
            self._inject(next(order))
            if outcome.injected % CHECK_EVERY == 0:
                self._check(self._violations())
        world.quiesce()
        self._check([*self._violations(), *self._final()])
        outcome.calls, outcome.elapsed_s = len(world.history.calls), world.elapsed()
        return outcome

    def _order(self, names: list[str]) -> Iterator[str]:
        while True:
            self._rng.shuffle(names)
            yield from names

    def _inject(self, name: str) -> None:
        world, row = self._world, self.outcome.rows[name]
        row.times += 1
        began = world.elapsed()
        self._injected.append((world.start + began, name))
        fault_rng = random.Random(self._rng.random())
        try:
            FAULTS[name](world, fault_rng)
            lasted = world.elapsed() - began
            recovery = world.recover()
        except NotLive as error:
            self._add(Violation("live", f"{error} After: {name}."))
            lasted, recovery = 0.0, LIVE_S
            reset(world)
        row.longest_s = max(row.longest_s, recovery)
        number = f"{self.outcome.injected:3}"
        self._show(f"{began:7.1f} s  {number}  {name:28} lasted {lasted:5.1f} s, recovered in {recovery:5.1f} s")

    # -- checks ---------------------------------------------------------------------------------------------------

    def _violations(self) -> Iterator[Violation]:
        self._world.history.read()
        losses = Losses(self._world.losses, self._world.other_version_from)
        for job in self._world.plan.jobs:
            calls = self._world.history.of(job.job)
            yield from checks.check_all(job, calls, losses)
            yield from check_frames(calls, losses)

    def _final(self) -> Iterator[Violation]:
        """Yield the violations that are searched for at the end of the run."""
        losses = Losses(self._world.losses, self._world.other_version_from)
        for job in self._world.plan.jobs:
            calls = self._world.history.of(job.job)
            if not job.writers:
                verdict = check_model(job, calls, losses)
                self.outcome.judged += verdict.judged
                self.outcome.undecided += verdict.undecided
                yield from verdict.violations
            yield from self._final_of(job, calls, losses)
        errors = self._world.directory / "history" / "errors"
        for line in errors.read_text().splitlines() if errors.exists() else ():
            error = json.loads(line)
            if error["code"] not in EXPECTED_ERRORS:
                yield Violation("live", f"writer {error['client']} failed: {error['code']}: {error['text']}")

    def _final_of(self, job: JobPlan, calls: Sequence[Call], losses: Losses) -> Iterator[Violation]:
        if job.writers:
            try:
                counted, frames = self._world.counted(job), self._world.frames(job)
                events = self._world.frame_events(job)
            except NotLive as error:
                yield Violation("live", str(error))
            else:
                yield from accounting.check_rows(calls, losses, counted, time.monotonic())
                yield from check_frame_rows(calls, losses, frames, time.monotonic())
                yield from check_events(events)
        for query in job.writers:
            yield from accounting.check_files(self._world.checkpoint(query), query, calls)

    def _check(self, found: Iterator[Violation] | Sequence[Violation]) -> None:
        for violation in found:
            self._add(violation)

    def _add(self, violation: Violation) -> None:
        key = violation.guarantee, f"{violation.text}{[call.sent for call in violation.calls]}"
        if key in self._known:
            return
        self._known.add(key)
        self.outcome.violations.append(violation)
        shown = max((call.sent for call in violation.calls), default=time.monotonic())
        faults = [name for began, name in self._injected if began <= shown]
        if faults:  # the latest fault before the violation
            self.outcome.rows[faults[-1]].violations += 1
        if len(self.outcome.violations) <= 10:
            self._show(f"VIOLATION (seed {self.outcome.seed}) {violation.guarantee}: {violation.text}")
            for line in self.around(violation):
                self._show(f"  {line}")

    def around(self, violation: Violation) -> list[str]:
        """Return the shortest history that contains the calls of a violation."""
        if not violation.calls:
            return []
        job, first = violation.calls[0].job, min(call.sent for call in violation.calls)
        until = max(min(call.received, call.sent + LIVE_S) for call in violation.calls)
        near = [c for c in self._world.history.of(job) if first <= c.sent <= until or c in violation.calls]
        kept = near if len(near) <= SHOWN else [*near[: SHOWN // 2], *near[-SHOWN // 2 :]]
        shown = sorted({id(call): call for call in [*kept, *violation.calls]}.values(), key=lambda call: call.sent)
        return [("* " if call in violation.calls else "  ") + call.shown(self._world.start) for call in shown]


def write(outcome: Outcome, path: Path) -> None:
    """Write the result of a run to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(outcome.document(), indent=2) + "\n")
