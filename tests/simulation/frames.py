"""The frames that a consumer reads, and their checks: generations never change, and no frame is finished early."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tests.simulation.knowledge import Violation, below

FRAME_MS = 20_000
CORRECTION_MS = 3_000
DECLARATION = {"every": FRAME_MS, "offset_ms": 0, "time_zone": None, "correction_delay_ms": CORRECTION_MS}
CLASSES = ("on_time", "updated", "dropped", "diverted")

Rows = Mapping[str, int]
Frame = Mapping[str, Any]


class Frames:
    """The frames that were read since the last loss of state."""

    def __init__(self) -> None:
        self._told: dict[tuple[int, int], tuple[Rows, Sequence[Mapping[str, str]]]] = {}
        self._latest: dict[int, int] = {}

    def lose(self) -> None:
        """Forget what was read: the coordinator may have lost it."""
        self._told.clear()
        self._latest.clear()

    def read(self, frames: Sequence[Frame], written: int | None, is_later: bool) -> None:
        """Check an answer.

        Args:
            frames: The frames in it.
            written: The written watermark in it.
            is_later: Whether the coordinator has lost no state since the request was sent.

        Raises:
            Violation: If a frame is finished early, or a generation has changed.
        """
        for frame in frames:
            if frame["state"] != "open" and below(written, frame["end"]):
                raise Violation(f"Frames: the frame at {frame['start']} is finished, and {written} is written")
            self._check_sums(frame)
            if is_later:
                self._check_generations(frame)

    @staticmethod
    def _check_sums(frame: Frame) -> None:
        sums = Counter[str]()
        for rows in (*(each["rows"] for each in frame["generations"]), frame["changes"] or {}):
            sums.update(rows)
        if frame["state"] != "open" and any(sums[name] != frame["rows"][name] for name in CLASSES):
            raise Violation(f"Frames: the generations of the frame at {frame['start']} do not add up")

    def _check_generations(self, frame: Frame) -> None:
        start, generation = frame["start"], frame["generation"] or 0
        if generation < self._latest.get(start, 0):
            raise Violation(f"Frames: generation {self._latest[start]} of the frame at {start} is gone")
        self._latest[start] = generation
        for each in frame["generations"]:
            content = each["rows"], each["outputs"]
            if self._told.setdefault((start, each["generation"]), content) != content:
                raise Violation(f"Frames: generation {each['generation']} of the frame at {start} has changed")


def check_tables(frames: Sequence[Frame], tables: Mapping[str, Mapping[int, int]]) -> None:
    """Check that the tables of frames have the rows of all batches that were committed when W passed the frames.

    Args:
        frames: The frames. The store must have lost no state.
        tables: For each query, the first version of its table with the rows of each batch.

    Raises:
        Violation: If the version of a table is an earlier one.
    """
    for frame in frames:
        committed = {each["query"]: each["batch_id"] for each in frame["queries"] if each["batch_id"] is not None}
        for output in (output for each in frame["generations"] for output in each["outputs"]):
            batch_id, version = committed.get(output["query"]), int(output["version"])
            if batch_id is not None and version < tables[output["query"]].get(batch_id, 0):
                raise Violation(
                    f"Frames: the frame at {frame['start']} has version {version} of the table of {output['query']}, "
                    f"and batch {batch_id} was written with version {tables[output['query']][batch_id]}"
                )


def check_counts(frames: Sequence[Frame], written: Mapping[int, int]) -> None:
    """Check the rows of frames against those that were written, by the start of their frame.

    Raises:
        Violation: If a frame that has all counts has another number of rows, or an empty one has a row.
    """
    for frame in frames:
        counted, expected = sum(frame["rows"].values()), written.get(frame["start"], 0)
        if counted > expected or (counted < expected and not frame["uncounted"]):
            raise Violation(f"Frames: the frame at {frame['start']} has {counted} rows, and {expected} were written")
    starts = {frame["start"] for frame in frames}
    # Late rows before the first frame of the job have no frame.
    if missing := sorted(start for start in written.keys() - starts if start >= min(starts, default=start)):
        raise Violation(f"Frames: no frame starts at {missing[0]}, and rows were written there")
