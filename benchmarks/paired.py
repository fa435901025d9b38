"""Paired timing: every variant in every round, in random order, beside the baseline of that round.

The figure is the median of the rounds' ratios to the baseline, with their spread. The baseline runs twice in each
round: the ratio of the two is the control, and what lies within its spread is no effect.
"""

import random
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass

BASELINE = "bare"
CONTROL = "bare again"


@dataclass(frozen=True, slots=True)
class Ratio:
    """One variant's ratios to the baseline: their median, lowest and highest."""

    median: float
    lowest: float
    highest: float

    def __str__(self) -> str:
        return f"{self.median:.2f}  [{self.lowest:.2f} .. {self.highest:.2f}]"


def compare(
    baseline: Callable[[], float], variants: Mapping[str, Callable[[], float]], rounds: int, show: Callable[[str], None]
) -> dict[str, Ratio]:
    """Times ``baseline`` and ``variants``, which return seconds. The first round, when all is cold, does not count."""
    timed = {BASELINE: baseline, CONTROL: baseline, **variants}
    ratios: dict[str, list[float]] = {name: [] for name in timed if name != BASELINE}
    for number in range(rounds + 1):
        seconds = {name: timed[name]() for name in random.sample(list(timed), len(timed))}
        told = "  ".join(f"{name} {seconds[name]:.2f} s" for name in timed)
        show(f"  {'warming up' if number == 0 else f'round {number}/{rounds}'}: {told}")
        if number:
            for name, measured in ratios.items():
                measured.append(seconds[name] / seconds[BASELINE])
    return {name: Ratio(statistics.median(measured), min(measured), max(measured)) for name, measured in ratios.items()}
