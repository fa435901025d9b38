"""Interleaved measurements: each round makes all measurements once, in random order.

The result is the median of the ratios within the rounds, with the lowest and the highest ratio. One measurement is made
twice in each round. The ratio of the two is the control: a difference within the spread of the control is not
significant.
"""

import random
from collections.abc import Callable, Mapping
from typing import TypeVar

from benchmarks.results import Row, Spread, ratios

Name = TypeVar("Name")
Result = TypeVar("Result")

BASELINE = "bare"
CONTROL = "bare again"
BY_HAND, AGAIN = "by hand", "by hand again"
COORDINATED = "coordinated"


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
    name: str,
    baseline: Callable[[], float],
    by_hand: Callable[[], float],
    variants: Mapping[str, Callable[[], float]],
    rounds: int,
    show: Callable[[str], None],
    targets: Mapping[str, float] | None = None,
) -> list[Row]:
    """Compare queries with a query without coordination, and with two passes that are written by hand.

    Args:
        name: Name of the comparison.
        baseline: A function that returns the seconds of the query without coordination.
        by_hand: A function that returns the seconds of the query with two passes.
        variants: Functions that return the seconds of other queries; ``COORDINATED`` is one of them.
        rounds: Number of rounds.
        show: A function that shows a line.
        targets: Highest ratios to ``baseline`` of the variants that have a target.
    """
    show(f"{name}:")
    seconds = interleave({BASELINE: baseline, BY_HAND: by_hand, AGAIN: by_hand, **variants}, rounds, show)
    bare, hand = seconds[BASELINE], seconds[BY_HAND]
    return [
        Row(f"{name}: {BASELINE}", Spread.of(bare), "s"),
        *(
            Row(f"{name}: {each} / {BASELINE}", ratios(seconds[each], bare), at_most=(targets or {}).get(each))
            for each in (BY_HAND, *variants)
        ),
        Row(f"{name}: {AGAIN} / {BY_HAND} (control)", ratios(seconds[AGAIN], hand)),
        Row(f"{name}: {COORDINATED} / {BY_HAND}", ratios(seconds[COORDINATED], hand), at_most=1.05),
    ]
