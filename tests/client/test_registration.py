"""What the answers to begins prove about the declaration of a run."""

import pytest

from tidegate_spark.protocol.registration import BegunBatches

OPEN, COMMITTED = True, False


@pytest.mark.parametrize(
    ("begins", "proofs"),
    [
        ([(0, None, False)], [False]),
        ([(5, 4, COMMITTED)], [False]),
        ([(5, 4, COMMITTED), (6, 5, COMMITTED)], [False, True]),
        ([(5, 4, COMMITTED), (6, 5, OPEN)], [False, True]),
        ([(5, 4, COMMITTED), (6, 4, COMMITTED)], [False, False]),
        ([(5, 4, COMMITTED), (6, None, False)], [False, False]),
        ([(5, 4, COMMITTED), (6, 7, COMMITTED)], [False, True]),
        ([(5, 4, COMMITTED), (5, 4, COMMITTED)], [False, False]),
        ([(5, 4, COMMITTED), (5, 5, OPEN)], [False, False]),
        ([(5, 4, COMMITTED), (5, 5, COMMITTED)], [False, True]),
        ([(5, 5, COMMITTED), (5, 5, COMMITTED)], [False, False]),
        ([(5, 4, COMMITTED), (6, 5, COMMITTED), (6, 5, COMMITTED)], [False, True, True]),
        ([(5, 4, COMMITTED), (6, 5, COMMITTED), (6, 4, COMMITTED)], [False, True, False]),
    ],
    ids=[
        "the first batch of a query",
        "the first batch of a run: an earlier run began the one before",
        "the batch before is known",
        "the batch before is known, and its commit is lost",
        "the batch before is lost",
        "everything is lost",
        "another run has begun later batches",
        "the answer was lost, and so was the begin",
        "the answer was lost: an open batch shows the latest one of this run only after the begin",
        "committed since the first begin",
        "committed before the first begin, by an earlier run",
        "a repeated begin",
        "a repeated begin after a loss",
    ],
)
def test_what_a_begin_proves(begins: list[tuple[int, int | None, bool]], proofs: list[bool]) -> None:
    begun = BegunBatches()
    assert [begun.prove_declaration(*begin) for begin in begins] == proofs
