"""Generated streams whose delays follow a known distribution."""

import math
from collections.abc import Callable, Iterator
from random import Random

Law = Callable[[Random], float]

LAWS: dict[str, Law] = {
    "exponential": lambda random: random.expovariate(1 / 6000),
    "lognormal": lambda random: random.lognormvariate(math.log(4000), 0.8),
    "pareto": lambda random: 2000 * (random.paretovariate(1.5) - 1),
}
"""Distributions of the delay in milliseconds: medians of some seconds, tails from light to heavy."""

APART = 500
"""Event time between two events, in milliseconds."""


def arrivals(law: Law, events: int, seed: int, change: int | None = None, factor: float = 1) -> list[int]:
    """Return event times in the order of arrival.

    From the event with the index ``change`` on, delays are multiplied by ``factor``.
    """
    random = Random(seed)  # noqa: S311 - the same delays each time
    sent = range(0, events * APART, APART)
    longer = events if change is None else change
    came = [time + int(law(random) * (1 if at < longer else factor)) for at, time in enumerate(sent)]
    return [time for _, time in sorted(zip(came, sent, strict=True))]


def batches(times: list[int], size: int = 20) -> Iterator[list[int]]:
    for first in range(0, len(times), size):
        yield times[first : first + size]
