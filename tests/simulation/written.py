"""What drivers have written, and the check that each batch is written with the same late rows again."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from tests.simulation.knowledge import Violation
from tidegate_spark.protocol.batches import OpenBatch

Late = Mapping[str, Sequence[bool]]


@dataclass(slots=True)
class _First:
    """How a batch was written first.

    Attributes:
        run: The number of the run.
        newest: The number of the newest run at that time.
        acknowledged: Whether the coordinator knew each write of the batch so far.
    """

    run: int
    newest: int
    acknowledged: bool


class Written:
    """The written batches by query and number.

    Attributes:
        late: For each batch, whether each of its rows is late, by substream.
    """

    def __init__(self) -> None:
        self.late: dict[tuple[str, int], Late] = {}
        self._pins: dict[tuple[str, int], int | None] = {}
        self._first: dict[tuple[str, int], _First] = {}

    def fingerprint(self) -> Hashable:
        """Return the pinned watermarks."""
        return tuple(sorted(self._pins.items()))

    def add(
        self, key: tuple[str, int], run: int, newest: int, opened: OpenBatch, late: Late, has_lost_runs: bool
    ) -> bool:
        """Record a written batch, and return whether it is new.

        Args:
            key: The query and the number of the batch.
            run: The number of the run that writes it.
            newest: The number of the newest run of the query.
            opened: The batch.
            late: Whether each of its rows is late.
            has_lost_runs: Whether the coordinator may have lost which run is the newest one.

        Raises:
            Violation: If the batch was written before with another pinned watermark or other late rows, and the
                coordinator was able to fence one of the two runs.
        """
        pinned, is_new = opened.stored.pinned_watermark, key not in self.late
        first = self._first.setdefault(key, _First(run, newest, True))
        first.acknowledged &= opened.acknowledged
        if not is_new and (self._pins[key] != pinned or self.late[key] != late):
            # A run that starts later reads the pinned watermark that the first one has stored.
            is_concurrent = run != first.run and run <= first.newest
            # The coordinator cannot fence an older run after a loss, or while one of the two runs does not call it.
            if not is_concurrent or (first.acknowledged and not has_lost_runs):
                raise Violation(f"Replay-exact: batch {key[1]} of {key[0]} has {pinned} after {self._pins[key]}")
        self._pins[key], self.late[key] = pinned, late
        return is_new
