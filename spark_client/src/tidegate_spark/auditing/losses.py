"""What a query has lost: its groups of rows, compared with the watermarks of its batches."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tidegate_spark.auditing.checkpoint import Judgement
from tidegate_spark.auditing.rows import Group

HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class AuditedBatch:
    """A batch with rows, or one without.

    Attributes:
        number: Its number in the audit, from 0 on.
        batch_id: Spark's id; None for a batch from before the log of offsets.
        planned_ms: Time at which it was planned (epoch milliseconds). Before the log: the latest change of its files.
        late: Lowest and highest watermark with which its rows may have been compared (epoch milliseconds). They are
            equal if the checkpoint has the watermark, or if it follows from the rows without doubt.
        is_logged: Whether the watermark is that of the checkpoint.
    """

    number: int
    batch_id: int | None
    planned_ms: int
    late: tuple[int, int]
    is_logged: bool


@dataclass(slots=True)
class Loss:
    """Numbers of rows.

    Attributes:
        rows: All rows with an event time.
        least: Rows that the query has lost, at least.
        most: Rows that the query has lost, at most. It differs only if the checkpoint has forgotten batches.
    """

    rows: int = 0
    least: int = 0
    most: int = 0

    def add(self, rows: int, least: int, most: int) -> None:
        """Add a number of rows, and the numbers that are lost at least and at most."""
        self.rows += rows
        self.least += least
        self.most += most

    @property
    def share(self) -> float:
        """The share of lost rows, at most."""
        return self.most / self.rows if self.rows else 0.0


@dataclass(slots=True)
class Losses:
    """The lost rows of a query.

    Attributes:
        total: All rows.
        by_slot: By the end of the window, or of the minute (epoch milliseconds).
        by_hour: By the start of the hour of the event time, or of the start of the window.
        by_substream: By source and substream.
        by_batch: By the number of the batch.
        below_watermark: Rows at or below the watermark, which are lost only if their window has ended; of batches whose
            watermark the checkpoint has.
        without_event_time: Rows without an event time.
    """

    total: Loss = field(default_factory=Loss)
    by_slot: dict[int, Loss] = field(default_factory=lambda: defaultdict(Loss))
    by_hour: dict[int, Loss] = field(default_factory=lambda: defaultdict(Loss))
    by_substream: dict[tuple[int, str], Loss] = field(default_factory=lambda: defaultdict(Loss))
    by_batch: dict[int, Loss] = field(default_factory=lambda: defaultdict(Loss))
    below_watermark: int = 0
    without_event_time: int = 0


def lost_rows(
    groups: Iterable[Group], batches: Sequence[AuditedBatch], judged: Judgement | None, slot_ms: int
) -> Losses:
    """Return the lost rows of a query.

    Args:
        groups: The groups of its rows.
        batches: The batches by their numbers.
        judged: What the query compares with the watermark; None if it drops no rows.
        slot_ms: Width of a slot.
    """
    losses = Losses()
    for group in groups:
        if group.end is None:
            losses.without_event_time += group.rows
            continue
        batch = batches[group.batch]
        least, most = (_lost(group, batch, is_most, judged, slot_ms) for is_most in (False, True))
        if batch.is_logged:
            losses.below_watermark += group.below
        start = group.end - slot_ms
        for loss in (
            losses.total,
            losses.by_slot[group.end],
            losses.by_hour[start - start % HOUR_MS],
            losses.by_substream[group.source, group.substream],
            losses.by_batch[group.batch],
        ):
            loss.add(group.rows, least, most)
    return losses


def _lost(group: Group, batch: AuditedBatch, is_most: bool, judged: Judgement | None, slot_ms: int) -> int:
    """Return how many rows of a group are lost, at least or at most."""
    if judged is None or group.end is None:
        return 0
    if judged == "row" and batch.is_logged:
        return group.below  # counted row by row
    late = batch.late[is_most]
    if judged == "window":
        return group.rows if group.end <= late else 0
    # The watermark follows from the rows, so the minute that contains it counts as a whole, or not at all.
    return group.rows if (group.end - slot_ms <= late if is_most else group.end - 1 <= late) else 0


def highest_of(groups: Iterable[Group]) -> dict[int, dict[int, int]]:
    """Return the highest event time by batch and source (epoch milliseconds)."""
    found: dict[int, dict[int, int]] = defaultdict(dict)
    for group in groups:
        if group.highest is not None:
            of_batch = found[group.batch]
            of_batch[group.source] = max(of_batch.get(group.source, group.highest), group.highest)
    return found


def behind(groups: Iterable[Group]) -> Mapping[tuple[int, str], Counter[int]]:
    """Return how far each substream ran behind the highest event time: the number of batches by whole minutes."""
    by_batch: dict[int, dict[tuple[int, str], int]] = defaultdict(dict)
    for group in groups:
        if group.highest is not None:
            of = group.source, group.substream
            by_batch[group.batch][of] = max(by_batch[group.batch].get(of, group.highest), group.highest)
    found: dict[tuple[int, str], Counter[int]] = defaultdict(Counter)
    reached: dict[tuple[int, str], int] = {}
    for number in sorted(by_batch):
        for of, highest in by_batch[number].items():
            reached[of] = max(reached.get(of, highest), highest)
        top = max(reached.values())
        for of, highest in reached.items():
            found[of][(top - highest) // 60_000] += 1
    return found
