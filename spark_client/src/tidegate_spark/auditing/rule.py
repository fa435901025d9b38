"""Spark's own watermark, from the highest event times of batches.

Spark keeps a watermark for each ``withWatermark`` of a plan, the highest event time so far minus the delay, and takes
the lowest or the highest of them. It never falls. A batch that begins after a restart knows none of the separate
watermarks, only the merged one. Rows are compared with the watermark of the batch before.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass
class SparkWatermark:
    """The watermark of a query in its course.

    Attributes:
        delays_ms: Delay of each ``withWatermark`` by its number.
        policy: ``min`` or ``max``.
        merged: The watermark (epoch milliseconds).
    """

    delays_ms: Mapping[int, int]
    policy: str = "min"
    merged: int = 0
    _separate: dict[int, int] = field(default_factory=dict)

    def after(self, highest: Mapping[int, int]) -> int:
        """Return the watermark after a batch.

        Args:
            highest: Highest event time of each ``withWatermark`` that had rows (epoch milliseconds).
        """
        for number, delay_ms in self.delays_ms.items():
            before = self._separate.get(number)
            if number in highest:
                reached = highest[number] - delay_ms
                self._separate[number] = reached if before is None else max(before, reached)
            elif before is None:
                self._separate[number] = 0  # of a source without rows so far, which holds the minimum in 1970
        chosen = (max if self.policy == "max" else min)(self._separate.values())
        self.merged = max(self.merged, chosen)
        return self.merged


@dataclass(frozen=True, slots=True)
class Difference:
    """A batch whose watermark in the checkpoint is not the one that follows from the rows.

    Attributes:
        batch_id: Spark's id of the batch.
        logged: Watermark in the checkpoint (epoch milliseconds).
        computed: Watermark that follows from the rows.
    """

    batch_id: int
    logged: int
    computed: int


def compare(
    logged: Sequence[tuple[int, int, int | None]],
    highest: Mapping[int, Mapping[int, int]],
    delays_ms: Mapping[int, int],
    policy: str,
) -> tuple[list[Difference], list[int]]:
    """Compare the watermarks of a checkpoint with those that follow from the rows.

    Args:
        logged: For each batch: its id, its watermark, and the watermark after it; None if that is not known.
        highest: For each batch: the highest event time of each ``withWatermark``.
        delays_ms: Delay of each ``withWatermark``.
        policy: ``min`` or ``max``.

    Returns:
        The differences, and the batches before which a restart explains the watermark.
    """
    differences, restarts = [], []
    spark = SparkWatermark(delays_ms, policy, logged[0][1] if logged else 0)
    for batch_id, before, after in logged:
        spark.merged = before
        kept = dict(spark._separate)
        computed = spark.after(highest.get(batch_id, {}))
        if after is None or computed == after:
            continue
        fresh = SparkWatermark(delays_ms, policy, before)
        if fresh.after(highest.get(batch_id, {})) == after and len(kept) > 1:
            restarts.append(batch_id)
            spark = fresh
        else:
            differences.append(Difference(batch_id, after, computed))
    return differences, restarts


def delay_from(logged: Sequence[tuple[int, int, int | None]], highest: Mapping[int, int]) -> int | None:
    """Return the delay of the only ``withWatermark``, from the first batch that has moved the watermark.

    Args:
        logged: For each batch: its id, its watermark, and the watermark after it.
        highest: For each batch: the highest event time (epoch milliseconds).
    """
    for batch_id, before, after in logged:
        if after is not None and after > before and batch_id in highest:
            return highest[batch_id] - after
    return None
