"""``python -m tests.simulation``: run seeds of the simulation for some minutes, replay one seed, or try all orders."""

import argparse
import itertools
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

from tests.simulation.exhaustive import CASES, explore
from tests.simulation.run import Outcome, Simulation, statistics
from tests.simulation.shrink import shrink

PROGRESS_S = 15


def main() -> int:
    """Run the simulation, and return the exit code: 1 if a guarantee did not hold."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument(
        "--minutes", type=float, default=10, help="how long to run, in minutes of one core (default: 10)"
    )
    parser.add_argument("--first", type=int, default=0, help="first seed (default: 0)")
    parser.add_argument("--seeds", type=int, help="number of seeds to run, instead of some minutes")
    parser.add_argument("--seed", type=int, help="replay one seed, and print its history")
    parser.add_argument("--no-shrinking", action="store_true", help="end at a violation without shrinking it")
    parser.add_argument("--exhaustive", action="store_true", help="try all orders of a small case instead")
    chosen = parser.parse_args()
    if chosen.exhaustive:
        return _explore()
    if chosen.seed is not None:
        return _replay(chosen.seed)
    return _run(chosen.first, chosen.seeds, 60 * chosen.minutes, not chosen.no_shrinking)


def _replay(seed: int) -> int:
    outcome = Simulation(seed, keeps_history=True).run()
    if outcome.violation is not None:
        outcome = shrink(outcome)
    print("\n".join(outcome.history))
    _print(outcome)
    return int(outcome.violation is not None)


def _run(first: int, count: int | None, longest_s: float, shrinks: bool) -> int:
    began = time.process_time()
    outcomes: list[Outcome] = []
    next_s = float(PROGRESS_S)
    for seed in _seeds(first, count):
        outcome = Simulation(seed).run()
        outcomes.append(outcome)
        elapsed_s = time.process_time() - began
        if outcome.violation is not None:
            print(f"Seed {seed} after {elapsed_s:.1f} s: {outcome.violation}.", flush=True)
            if not shrinks:
                return 1
            print(f"Shrinking {len(outcome.faults)} faults ...", flush=True)
            shrunk = shrink(outcome)
            print("\n".join(shrunk.history[-60:]))
            _print(shrunk)
            return 1
        if elapsed_s >= next_s:
            print(f"{elapsed_s:5.0f} s: {len(outcomes):,} runs, no violation", flush=True)
            next_s = elapsed_s + PROGRESS_S
        if count is None and elapsed_s >= longest_s:
            break
    _print_statistics(statistics(outcomes), len(outcomes), time.process_time() - began)
    return 0


def _seeds(first: int, count: int | None) -> Iterator[int]:
    return itertools.count(first) if count is None else iter(range(first, first + count))


def _print_statistics(numbers: Mapping[str, Any], runs: int, seconds: float) -> None:
    a_minute = 60 * numbers["steps"] / seconds
    print(f"{runs:,} runs without a violation: {numbers['steps']:,} steps, {a_minute:,.0f} a minute")
    print(f"{numbers['answers']:,} answers checked, {numbers['batches']:,} batches written")
    print(f"{numbers['unprotected']:,} batches outside the promise, {numbers['repairs']:,} repairs by an operator")
    for kind, times in sorted(numbers["faults"].items()):
        print(f"{times:8,} {kind}")


def _print(outcome: Outcome) -> None:
    faults = "; ".join(f"{number}: {kind}" for number, kind in outcome.faults)
    print(f"Seed {outcome.seed}, {len(outcome.faults)} faults ({faults})")
    print(f"Violation: {outcome.violation}. To replay: make simulate SEED={outcome.seed}")


def _explore() -> int:
    for name, case in CASES.items():
        began = time.monotonic()
        found = explore(case)
        print(f"{name}: {found.states:,} states, {found.ends:,} ends, {time.monotonic() - began:.0f} s", flush=True)
        if found.violation is not None:
            print(f"Violation: {found.violation}, after {list(found.path)}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
