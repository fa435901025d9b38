"""Streams whose rows come late by a law that is known."""

import math
from collections.abc import Callable, Iterator
from random import Random

Law = Callable[[Random], float]

LAWS: dict[str, Law] = {
    "exponential": lambda random: random.expovariate(1 / 6000),
    "lognormal": lambda random: random.lognormvariate(math.log(4000), 0.8),
    "pareto": lambda random: 2000 * (random.paretovariate(1.5) - 1),
}
"""Delays, of some seconds in the middle and with tails from light to heavy."""

APART = 500
"""From one event to the next."""


def arrivals(law: Law, events: int, seed: int, change: int | None = None, factor: float = 1) -> list[int]:
    """Event times in the order of arrival; from the event ``change`` on, delays are so many times as long."""
    random = Random(seed)  # noqa: S311 - to be drawn again alike
    sent = range(0, events * APART, APART)
    longer = events if change is None else change
    came = [time + int(law(random) * (1 if at < longer else factor)) for at, time in enumerate(sent)]
    return [time for _, time in sorted(zip(came, sent, strict=True))]


def batches(times: list[int], size: int = 20) -> Iterator[list[int]]:
    for first in range(0, len(times), size):
        yield times[first : first + size]
