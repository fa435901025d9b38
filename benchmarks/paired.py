"""Paired timing: each round runs the baseline and all variants once, in random order.

The result of a variant is the median of its ratios to the baseline of the same round, with the lowest and the highest
ratio. The baseline runs twice in each round. The ratio of these two runs is the control: a difference within the spread
of the control is not significant.
"""

import random
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass

BASELINE = "bare"
CONTROL = "bare again"


@dataclass(frozen=True, slots=True)
class Ratio:
    """The median, the lowest and the highest ratio of one variant to the baseline."""

    median: float
    lowest: float
    highest: float

    def __str__(self) -> str:
        return f"{self.median:.2f}  [{self.lowest:.2f} .. {self.highest:.2f}]"


def compare(
    baseline: Callable[[], float], variants: Mapping[str, Callable[[], float]], rounds: int, show: Callable[[str], None]
) -> dict[str, Ratio]:
    """Run functions that return seconds, and return the ratios of ``variants`` to ``baseline``.

    The first of the ``rounds + 1`` rounds is a warm-up and does not count.
    """
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
