"""The faults of a simulation: kinds with a rate for each run, drawn from its seed."""

from collections import Counter
from collections.abc import Collection
from random import Random

RATES = {
    "request lost": 0.02,
    "answer lost": 0.02,
    "message duplicated": 0.01,
    "message delayed": 0.03,
    "driver killed before an effect": 0.004,
    "driver killed after an effect": 0.004,
    "driver killed after it has created the job": 0.5,
    "driver killed before a batch is finished": 0.1,
    "tail lost after a kill": 0.5,
    "second driver": 0.03,
    "state lost after a second driver": 0.5,
    "coordinator away": 0.01,
    "tail lost": 0.006,
    "state lost": 0.006,
    "state lost again": 0.5,
    "state lost after a reset": 1.0,
    "clock of a driver stepped": 0.003,
    "clock of the coordinator stepped": 0.003,
    "operator holds or releases": 0.3,
    "operator evicts": 0.3,
    "operator declares idle": 0.2,
    "operator changes the configuration": 0.2,
    "operator retires": 0.1,
    "operator resets": 0.1,
}
"""Highest probability of each kind of fault at each opportunity. A run draws its own rates below these."""


class Faults:
    """The faults of one run. Each opportunity for a fault has a number, so that a fault can be left out.

    Args:
        random: The source of the rates and of the decisions.
        only: Numbers of the opportunities at which faults may occur; None for all opportunities.
        without: Kinds that do not occur.

    Attributes:
        happened: Numbers and kinds of the faults that have occurred.
        enabled: Whether faults may occur.
    """

    def __init__(self, random: Random, only: Collection[int] | None = None, without: Collection[str] = ()) -> None:
        self._random, self._only = random, only
        self._number = 0
        # Each run has some of the kinds only. A run with all kinds rarely gets far (swarm testing).
        self._rates = {kind: rate * random.random() * (random.random() < 0.5) for kind, rate in RATES.items()}
        self._rates |= dict.fromkeys(without, 0.0)
        self.happened: list[tuple[int, str]] = []
        self.enabled = True

    def happens(self, kind: str) -> bool:
        """Decide whether a fault occurs at this opportunity."""
        if not self.enabled:
            return False
        self._number += 1
        if self._random.random() >= self._rates[kind] or (self._only is not None and self._number not in self._only):
            return False
        self.happened.append((self._number, kind))
        return True

    def counts(self) -> Counter[str]:
        """Return the number of faults by kind."""
        return Counter(kind for _, kind in self.happened)
