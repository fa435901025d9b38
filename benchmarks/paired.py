"""Interleaved measurements: each round makes all measurements once, in random order.

The result is the median of the ratios within the rounds, with the lowest and the highest ratio. The baseline is
measured twice in each round. The ratio of these two measurements is the control: a difference within the spread of the
control is not significant.
"""

import random
from collections.abc import Callable, Mapping
from typing import TypeVar

from benchmarks.results import Row, Spread, ratios

Name = TypeVar("Name")
Result = TypeVar("Result")

BASELINE = "bare"
CONTROL = "bare again"


def interleave(
    measurements: Mapping[Name, Callable[[], Result]], rounds: int, show: Callable[[str], None]
) -> dict[Name, list[Result]]:
    """Make all measurements in each round, in random order, and return the results of each measurement.

    The first of the ``rounds + 1`` rounds is a warm-up and does not count.
    """
    results: dict[Name, list[Result]] = {name: [] for name in measurements}
    for number in range(rounds + 1):
        for name in random.sample(list(measurements), len(measurements)):
            result = measurements[name]()
            if number:
                results[name].append(result)
        show(f"  {f'round {number}/{rounds}' if number else 'warming up'}")
    return results


def compare(
    baseline: Callable[[], float],
    variants: Mapping[str, Callable[[], float]],
    targets: Mapping[str, float],
    rounds: int,
    show: Callable[[str], None],
) -> list[Row]:
    """Run functions that return seconds, and return the ratios of ``variants`` to ``baseline``.

    ``targets`` has the highest ratio of variants with a target.
    """
    seconds = interleave({BASELINE: baseline, CONTROL: baseline, **variants}, rounds, show)
    bare = seconds.pop(BASELINE)
    rows = [
        Row(f"{name} / {BASELINE}", ratios(each, bare), at_most=targets.get(name)) for name, each in seconds.items()
    ]
    return [Row(BASELINE, Spread.of(bare), "s"), *rows]
