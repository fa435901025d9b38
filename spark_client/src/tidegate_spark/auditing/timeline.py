"""The batches of a checkpoint: what each has read, and the watermark with which its rows are compared."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise

from tidegate_spark.auditing.checkpoint import LoggedBatch, LoggedFile, QueryCheckpoint
from tidegate_spark.auditing.losses import AuditedBatch
from tidegate_spark.auditing.rule import Difference, SparkWatermark, compare, delay_from
from tidegate_spark.auditing.sources import Kind, ReadRange
from tidegate_spark.errors import InvalidUsage


@dataclass(frozen=True, slots=True)
class Timeline:
    """The batches of an audit, and what each has read.

    A single file source keeps the names of all its files, so batches from before the log of offsets are known, too: one
    for each offset of the source. Of other sources, only batches whose predecessor is in the log are known.

    Attributes:
        earlier: Number of batches from before the log, with the numbers 0 and up.
        without_rows: Number of batches without rows among those before the log.
        logged: The batches after those, whose beginnings and ends are in the log.
        files: The number of the batch of each file, by source.
        parts: What each batch has read of each other source.
        next_watermarks: Watermark after a batch, by Spark's id.
        changed_ms: Latest change of a file, by the number of the batch.
    """

    earlier: int
    without_rows: int
    logged: tuple[LoggedBatch, ...]
    files: Mapping[int, Mapping[LoggedFile, int]]
    parts: Mapping[int, Sequence[ReadRange]]
    before: LoggedBatch | None
    next_watermarks: Mapping[int, int]
    changed_ms: Mapping[int, int]

    @classmethod
    def of(cls, checkpoint: QueryCheckpoint, kinds: Sequence[Kind]) -> "Timeline":
        """Return the batches of a checkpoint."""
        batches = checkpoint.batches
        consecutive = len(batches) - 1
        while consecutive > 0 and batches[consecutive - 1].batch_id == batches[consecutive].batch_id - 1:
            consecutive -= 1
        batches = batches[consecutive:]
        first = batches[0]
        if first.batch_id == 0:
            before, logged = None, batches
        else:
            before, logged = first, batches[1:]
        earlier = without_rows = 0
        changed: dict[int, int] = {}
        if before is not None and tuple(kinds) == ("files",):
            earlier = _offset(before, 0) + 1
            without_rows = before.batch_id + 1 - earlier
        numbers = {batch.batch_id: earlier + place for place, batch in enumerate(logged)}
        files: dict[int, dict[LoggedFile, int]] = {}
        parts: dict[int, list[ReadRange]] = {}
        for source, kind in enumerate(kinds):
            previous = before
            if kind == "files":
                files[source] = of_files = {}
                ends = [(numbers[batch.batch_id], _offset(batch, source)) for batch in logged]
                start = -1 if previous is None else _offset(previous, source)
                for file in checkpoint.files[source]:
                    if file.offset <= start:
                        number = file.offset if earlier else None
                    else:
                        number = next((each for each, end in ends if file.offset <= end), None)
                    if number is not None:
                        of_files[file] = number
                        changed[number] = max(changed.get(number, 0), file.changed_ms)
            else:
                parts[source] = of_parts = []
                at = checkpoint.starts.get(source) if previous is None else previous.ends[source]
                for batch in logged:
                    if batch.ends[source] is not None:
                        of_parts.append(ReadRange(numbers[batch.batch_id], at, batch.ends[source]))
                        at = batch.ends[source]
        return cls(earlier, without_rows, logged, files, parts, before, checkpoint.next_watermarks, changed)

    @property
    def late(self) -> dict[int, int]:
        """The watermark with which the rows of each logged batch are compared: that of the batch before."""
        found, previous = {}, self.before
        for place, batch in enumerate(self.logged):
            found[self.earlier + place] = 0 if previous is None else previous.watermark
            previous = batch
        return found

    def after(self, place: int) -> int | None:
        """Return the watermark after a logged batch; None if it is not known."""
        if place + 1 < len(self.logged):
            return self.logged[place + 1].watermark
        return self.next_watermarks.get(self.logged[place].batch_id)

    def audited(self, marks: "Watermarks", highest: Mapping[int, Mapping[int, int]]) -> tuple[AuditedBatch, ...]:
        """Return the batches with the watermarks with which their rows are compared."""
        late = self.late
        found = []
        for number, bounds in enumerate(self._earlier_bounds(marks, highest)):
            found.append(AuditedBatch(number, None, self.changed_ms.get(number, 0), bounds, is_logged=False))
        for place, batch in enumerate(self.logged):
            number = self.earlier + place
            bounds = (late[number], late[number])
            found.append(AuditedBatch(number, batch.batch_id, batch.planned_ms, bounds, is_logged=True))
        return tuple(found)

    def _earlier_bounds(
        self, marks: "Watermarks", highest: Mapping[int, Mapping[int, int]]
    ) -> Iterator[tuple[int, int]]:
        """Yield the lowest and highest watermark with which the rows of each batch before the log were compared.

        A batch without rows may have run between two others. It does so only if the watermark has moved, and not if
        rows were there already. If as many of them ran as could, or none, there is no doubt.
        """
        spark = SparkWatermark(marks.delays_ms, marks.policy)
        watermarks = [0]
        for number in range(self.earlier):
            watermarks.append(spark.after(marks.by_watermark(highest.get(number, {}))))
        moves = sum(after > before for before, after in pairwise(watermarks))
        for number in range(self.earlier):
            least, most = watermarks[max(0, number - 1)], watermarks[number]
            if self.without_rows == 0:
                yield least, least
            elif self.without_rows >= moves:
                yield most, most
            else:
                yield least, most


def _offset(batch: LoggedBatch, source: int) -> int:
    end = batch.ends[source]
    return -1 if end is None else int(end["logOffset"])


@dataclass(frozen=True, slots=True)
class Watermarks:
    """The ``withWatermark`` of a query, and how far its checkpoint agrees with the rows.

    Attributes:
        delays_ms: Delay of each, by the number of its source; of the only one for all sources, by 0.
        is_shared: Whether all sources have one.
        policy: ``min`` or ``max``.
        compared: Number of compared batches.
        differences: Batches in which the checkpoint has another watermark than the rows.
        restarts: Batches before which a restart explains the watermark.
    """

    delays_ms: Mapping[int, int]
    is_shared: bool
    policy: str
    compared: int
    differences: Sequence[Difference]
    restarts: Sequence[int]

    def by_watermark(self, highest: Mapping[int, int]) -> dict[int, int]:
        """Return the highest event time by ``withWatermark``, from that by source."""
        if not self.is_shared:
            return dict(highest)
        return {0: max(highest.values())} if highest else {}


def find_watermarks(
    checkpoint: QueryCheckpoint,
    timeline: Timeline,
    highest: Mapping[int, Mapping[int, int]],
    delays: Mapping[int, timedelta | None],
) -> Watermarks:
    """Return the watermarks of the query that agree best with its checkpoint.

    The plan is not in the checkpoint. Each of several sources may have its own ``withWatermark``, or their union one.
    """
    logged = [(batch.batch_id, batch.watermark, timeline.after(place)) for place, batch in enumerate(timeline.logged)]
    by_id = {
        batch.batch_id: highest[timeline.earlier + place]
        for place, batch in enumerate(timeline.logged)
        if timeline.earlier + place in highest
    }
    policy = checkpoint.batches[-1].policy
    candidates = []
    may_share = len(delays) > 1 and len(set(delays.values())) == 1
    for is_shared in (False, True)[: 1 + may_share]:
        marks = Watermarks({}, is_shared, policy, 0, (), ())
        of = {batch_id: marks.by_watermark(each) for batch_id, each in by_id.items()}
        given = {0: next(iter(delays.values()))} if is_shared else delays
        delays_ms = _delays(checkpoint, given, logged, of)
        differences, restarts = compare(logged, of, delays_ms, policy)
        compared = sum(after is not None for _, _, after in logged)
        candidates.append(Watermarks(delays_ms, is_shared, policy, compared, differences, restarts))
    return min(candidates, key=lambda each: len(each.differences))


def _delays(
    checkpoint: QueryCheckpoint,
    given: Mapping[int, timedelta | None],
    logged: Sequence[tuple[int, int, int | None]],
    highest: Mapping[int, Mapping[int, int]],
) -> dict[int, int]:
    in_state = sorted({delay for each in checkpoint.operators for delay in each.delays_ms})
    found = {}
    for number, delay in given.items():
        if delay is not None:
            found[number] = round(delay / timedelta(milliseconds=1))
            if in_state and found[number] not in in_state:
                in_checkpoint = " or ".join(str(timedelta(milliseconds=each)) for each in in_state)
                others = "leave it out" if len(in_state) == 1 else "pass one of these for each source, in their order"
                raise InvalidUsage(f"delay is {delay}, and the checkpoint shows {in_checkpoint}: {others}.")
        elif len(in_state) == 1:
            found[number] = in_state[0]
        elif len(given) == 1:
            shown = delay_from(logged, {batch: of[number] for batch, of in highest.items() if number in of})
            if shown is None:
                raise InvalidUsage(
                    "The checkpoint does not show the delay of withWatermark: pass it, with --delay 30m or "
                    "delay=timedelta(minutes=30)."
                )
            found[number] = shown
        else:
            shown_ms = " and ".join(str(timedelta(milliseconds=each)) for each in in_state) or "no delay"
            raise InvalidUsage(
                f"The checkpoint shows {shown_ms}, and not which source has which delay: pass one for each source in "
                "the order of the plan, with --delay 30m --delay 0s or delay=[timedelta(minutes=30), timedelta(0)]."
            )
    return found
