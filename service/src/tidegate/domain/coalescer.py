"""Merging: many substreams' watermarks into one, and when it may be relied upon."""

from collections.abc import Collection
from dataclasses import dataclass, field

from tidegate.domain.history import History
from tidegate.domain.numbers import EXACT_DOUBLE, NumberRange, above, by_value, highest
from tidegate.domain.throttle import Throttle, offer


@dataclass(frozen=True, slots=True)
class LowestPinnedWatermark:
    """The lowest pin among the open batches (None: a batch that began before there was a watermark), and whose."""

    value: int | None
    query: str

    @staticmethod
    def order(pinned_watermark: "LowestPinnedWatermark") -> tuple[tuple[bool, int], bytes]:
        return by_value(pinned_watermark.value), pinned_watermark.query.encode()


@dataclass(slots=True)
class Coalescer:
    """Holds ``coalesced_watermark`` (C, what the data says), ``watermark`` (W, what was released) and
    ``max_watermark``.

    ``throttled`` counts how often there was more to emit than ever (``offered``) and the throttle let nothing out.

    Invariants: neither C nor W goes back; W never passes C, nor the pin of an open batch that it had not passed before.
    The rules of a look are those of the conformance traces (Hazelcast Jet's ``WatermarkCoalescer`` and
    ``EventTimeMapper``).
    """

    coalesced_watermark_since_ms: int
    watermark_since_ms: int
    numbers: NumberRange = EXACT_DOUBLE
    coalesced_watermark: int | None = None
    watermark: int | None = None
    max_watermark: int | None = None
    all_idle: bool = False
    retention: History | None = field(default=None)
    throttled: int = 0
    offered: int | None = None

    def retain(self, max_retention_ms: int | None) -> None:
        """Another retention begins a history of its own; the same keeps the one it has."""
        before = None if self.retention is None else self.retention.length_ms
        if max_retention_ms != before:
            self.retention = None if max_retention_ms is None else History(max_retention_ms)

    @property
    def merged(self) -> int | None:
        """How far C would be without a throttle."""
        return highest(self.offered, self.coalesced_watermark)

    def look(
        self,
        live: Collection[int | None],
        throttle: Throttle,
        hold: int | None,
        now_ms: int,
        observed_ms: int,
        tick: bool,
    ) -> bool:
        """Merges the watermarks of the live substreams; returns whether retention is what moved C.

        Where none is live, the lead is all there is to wait for. ``tick``: time alone makes this look, and only then
        retention acts. ``hold``: C goes no further than that.
        """
        max_watermark = highest(self.max_watermark, *live)
        raised, self.max_watermark = above(max_watermark, self.max_watermark), max_watermark
        merged: int | None = None
        if live:
            self.all_idle = False
            if None not in live:
                merged = min(watermark for watermark in live if watermark is not None)
        else:
            self.all_idle = True
            merged = self.max_watermark
        retained: int | None = None
        if self.retention is not None and (tick or raised):
            sampled = self.retention.sample(observed_ms, self.max_watermark)
            retained = sampled if tick else None
        ideal = highest(merged, retained)
        if hold is not None and ideal is not None:
            ideal = min(ideal, hold)
        before = self.coalesced_watermark
        self.advance(offer(throttle, ideal, before, self.numbers), now_ms)
        if above(ideal, self.offered):
            self.offered = ideal
            self.throttled += self.coalesced_watermark == before and above(ideal, before)
        return above(self.coalesced_watermark, before) and above(self.coalesced_watermark, merged)

    def advance(self, coalesced_watermark: int | None, now_ms: int) -> None:
        if above(coalesced_watermark, self.coalesced_watermark):
            self.coalesced_watermark, self.coalesced_watermark_since_ms = coalesced_watermark, now_ms

    def release(self, pinned_watermark: LowestPinnedWatermark | None, now_ms: int) -> None:
        """``W = min(C, lowest open pin)``, and never back."""
        watermark = self.coalesced_watermark
        if pinned_watermark is not None and above(watermark, pinned_watermark.value):
            watermark = pinned_watermark.value
        self.heal(watermark, now_ms)

    def heal(self, watermark: int | None, now_ms: int) -> None:
        """Takes a watermark that is known to be out already, or may go out."""
        self.advance(watermark, now_ms)
        if above(watermark, self.watermark):
            self.watermark, self.watermark_since_ms = watermark, now_ms
