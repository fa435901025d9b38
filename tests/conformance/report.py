"""Playing whole files on several sides, with a line of results for each."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.conformance.play import Difference, play, why_left_out
from tests.conformance.rig import Side
from tests.conformance.traces import FILES, read


@dataclass
class Outcome:
    """The results of one file on one side: ``failed`` by trace name, ``left_out`` as counts by reason."""

    file: str
    side: str
    passed: int = 0
    failed: dict[str, Difference] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)

    def line(self) -> str:
        out = f"{self.file:<18} {self.side:<8} {self.passed:>4} passed {len(self.failed):>4} failed"
        out += f" {self.left_out.total():>4} left out"
        reasons = "; ".join(f"{count} for {reason}" for reason, count in self.left_out.items())
        return f"{out}  ({reasons})" if reasons else out


def run(folder: Path, sides: Sequence[Side], say: Callable[[str], None]) -> list[Outcome]:
    """Play every trace of a folder on every side.

    Raises:
        FileNotFoundError: If a file of traces is missing.
    """
    outcomes = []
    for file in FILES:
        traces = read(folder / f"{file}.jsonl")
        for side in sides:
            outcome = Outcome(file, side.name)
            for trace in traces:
                reason = why_left_out(trace, side)
                if reason is not None:
                    outcome.left_out[reason] += 1
                    continue
                difference = play(file, trace, side)
                if difference is None:
                    outcome.passed += 1
                else:
                    outcome.failed[trace.name] = difference
            outcomes.append(outcome)
            say(outcome.line())
            for name, at in outcome.failed.items():
                say(f"  {name}, step {at.step}: expected {at.expected}, got {at.got}")
    return outcomes
