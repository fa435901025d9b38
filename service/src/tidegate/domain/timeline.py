"""The timeline of a job: its watermark and holder at regular processing times, for charts of the lag.

The journal is exact, but holds a limited number of records. The timeline has a limited resolution, but always covers
the last day.
"""

from collections import deque
from dataclasses import dataclass

from tidegate.domain.results import Holder, HoldReason, WatermarkState

FINE_MS, COARSE_MS = 15_000, 300_000
SAMPLES_KEPT = {FINE_MS: 240, COARSE_MS: 288}
"""Number of samples by interval: the last hour, and the last day."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The watermark and its holder after a command at ``at_ms``, the first command of an interval.

    ``reason``, ``query`` and ``name`` describe the holder. ``name`` is the substream, the hold, or "" for an open batch
    or a missing query. ``reason`` is None if the watermark had no holder.
    """

    at_ms: int
    watermark: int | None
    reason: HoldReason | None
    query: str
    name: str

    @classmethod
    def of(cls, state: WatermarkState) -> "Sample":
        """Return the sample of a watermark."""
        return cls(state.now_ms, state.watermark, *_holder(state.held_by))


def _holder(holder: Holder | None) -> tuple[HoldReason | None, str, str]:
    return (None, "", "") if holder is None else (holder.reason, holder.query, holder.substream or holder.hold or "")


class Timeline:
    """The latest samples of a job, by interval."""

    def __init__(self) -> None:
        self._samples: dict[int, deque[Sample]] = {
            interval_ms: deque(maxlen=kept) for interval_ms, kept in SAMPLES_KEPT.items()
        }
        self._latest_ms: int | None = None

    def record(self, state: WatermarkState) -> None:
        """Append a sample for each interval that has none yet. After its creation, an empty job has no samples."""
        is_empty = self._latest_ms is not None and state.watermark is None and state.held_by is None
        for interval_ms, samples in self._samples.items():
            if not is_empty and (
                self._latest_ms is None or self._latest_ms // interval_ms < state.now_ms // interval_ms
            ):
                samples.append(Sample.of(state))
        self._latest_ms = state.now_ms

    def samples(self, interval_ms: int) -> list[Sample]:
        """Return the samples of an interval, oldest first."""
        return list(self._samples[interval_ms])
