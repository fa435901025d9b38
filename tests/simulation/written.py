"""What drivers have written, and the check that each batch is written with the same late rows again."""

from collections.abc import Hashable, Mapping, Sequence

from tests.simulation.knowledge import Violation
from tidegate_spark.protocol.batches import OpenBatch

Late = Mapping[str, Sequence[bool]]


class Written:
    """The written batches by query and number.

    Attributes:
        late: For each batch, whether each of its rows is late, by substream.
    """

    def __init__(self) -> None:
        self.late: dict[tuple[str, int], Late] = {}
        self._pins: dict[tuple[str, int], int | None] = {}
        self._by_overtaken: set[tuple[str, int]] = set()
        self._assumed: set[tuple[str, int]] = set()

    def fingerprint(self) -> Hashable:
        """Return the pinned watermarks."""
        return tuple(sorted(self._pins.items()))

    def add(
        self,
        key: tuple[str, int],
        opened: OpenBatch,
        late: Late,
        is_overtaken: bool,
        is_alone: bool,
        is_unfenced: bool,
    ) -> bool:
        """Record a written batch, and return whether it is new.

        Args:
            key: The query and the number of the batch.
            opened: The batch.
            late: Whether each of its rows is late.
            is_overtaken: Whether a newer run of the query exists.
            is_alone: Whether no other driver of the query is running.
            is_unfenced: Whether the coordinator cannot fence the run, because it has lost its state.

        Raises:
            Violation: If the batch was written before with another pinned watermark or other late rows, although the
                coordinator was able to fence one of the two runs.
        """
        pinned, is_cut_off = opened.stored.pinned_watermark, is_overtaken and not opened.acknowledged
        is_new, is_assumed = key not in self.late, key in self._assumed
        if not opened.acknowledged:
            self._assumed.add(key)
        if is_new:
            if is_cut_off:
                self._by_overtaken.add(key)
        elif self._pins[key] != pinned or self.late[key] != late:
            # The coordinator cannot fence an older run while one of the two runs does not call it.
            is_excused = is_unfenced or is_cut_off or key in self._by_overtaken or (is_assumed and not is_alone)
            if not is_excused:
                raise Violation(f"Replay-exact: batch {key[1]} of {key[0]} has {pinned} after {self._pins[key]}")
        self._pins[key], self.late[key] = pinned, late
        return is_new
