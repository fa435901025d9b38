"""The shrinking of a failing run: find few faults that still cause its violation (delta debugging)."""

from collections.abc import Sequence

from tests.simulation.run import Outcome, Simulation

MAX_RUNS = 400


def shrink(failed: Outcome) -> Outcome:
    """Return a run with the same seed, few faults, a violation of the same guarantee, and its history.

    A run without some of its faults may take another course, so the result has few faults, but not always the fewest.
    """
    assert failed.violation is not None
    guarantee = failed.violation.partition(":")[0]
    kept, parts = _numbers(failed), 2
    for _ in range(MAX_RUNS):
        size = max(1, len(kept) // parts)
        if not kept:
            break
        for start in range(0, len(kept), size):
            run = Simulation(failed.seed, only={*kept[:start], *kept[start + size :]}).run()
            if run.violation is not None and run.violation.startswith(f"{guarantee}:"):
                kept, parts = _numbers(run), max(parts - 1, 2)
                break
        else:
            if size == 1:
                break
            parts *= 2
    return Simulation(failed.seed, only=kept, keeps_history=True).run()


def _numbers(outcome: Outcome) -> Sequence[int]:
    return [number for number, _ in outcome.faults]
