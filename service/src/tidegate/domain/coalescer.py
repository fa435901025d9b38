"""Merging: many substreams' watermarks into one, and when it may be relied upon."""

from collections.abc import Collection
from dataclasses import dataclass, field

from tidegate.domain.history import History
from tidegate.domain.numbers import EXACT_DOUBLE, NumberRange, above, by_value, highest
from tidegate.domain.throttle import Throttle, offer


@dataclass(frozen=True, slots=True)
class OpenPin:
    """The lowest pin among the open batches (None: a batch that began before there was a watermark), and whose."""

    value: int | None
    query: str

    @staticmethod
    def order(pin: "OpenPin") -> tuple[tuple[bool, int], bytes]:
        return by_value(pin.value), pin.query.encode()


@dataclass(slots=True)
class Coalescer:
    """Holds ``coalesced`` (C, what the data says), ``watermark`` (W, what was released) and ``lead``.

    ``throttled`` counts how often there was more to emit than ever (``offered``) and the throttle let nothing out.

    Invariants: neither C nor W goes back; W never passes C, nor the pin of an open batch that it had not passed before.
    The rules of a look are those of the conformance traces (Hazelcast Jet's ``WatermarkCoalescer`` and
    ``EventTimeMapper``).
    """

    coalesced_since_ms: int
    watermark_since_ms: int
    numbers: NumberRange = EXACT_DOUBLE
    coalesced: int | None = None
    watermark: int | None = None
    lead: int | None = None
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
        return highest(self.offered, self.coalesced)

    def look(
        self, live: Collection[int | None], throttle: Throttle, hold: int | None, now_ms: int, observed_ms: int,
        tick: bool,
    ) -> bool:  # fmt: skip
        """Merges the watermarks of the live substreams; returns whether retention is what moved C.

        Where none is live, the lead is all there is to wait for. ``tick``: time alone makes this look, and only then
        retention acts. ``hold``: C goes no further than that.
        """
        lead = highest(self.lead, *live)
        raised, self.lead = above(lead, self.lead), lead
        merged: int | None = None
        if live:
            self.all_idle = False
            if None not in live:
                merged = min(watermark for watermark in live if watermark is not None)
        else:
            self.all_idle = True
            merged = self.lead
        retained: int | None = None
        if self.retention is not None and (tick or raised):
            sampled = self.retention.sample(observed_ms, self.lead)
            retained = sampled if tick else None
        ideal = highest(merged, retained)
        if hold is not None and ideal is not None:
            ideal = min(ideal, hold)
        before = self.coalesced
        self.advance(offer(throttle, ideal, before, self.numbers), now_ms)
        if above(ideal, self.offered):
            self.offered = ideal
            self.throttled += self.coalesced == before and above(ideal, before)
        return above(self.coalesced, before) and above(self.coalesced, merged)

    def advance(self, coalesced: int | None, now_ms: int) -> None:
        if above(coalesced, self.coalesced):
            self.coalesced, self.coalesced_since_ms = coalesced, now_ms

    def release(self, pin: OpenPin | None, now_ms: int) -> None:
        """``W = min(C, lowest open pin)``, and never back."""
        watermark = self.coalesced
        if pin is not None and above(watermark, pin.value):
            watermark = pin.value
        self.heal(watermark, now_ms)

    def heal(self, watermark: int | None, now_ms: int) -> None:
        """Takes a watermark that is known to be out already, or may go out."""
        self.advance(watermark, now_ms)
        if above(watermark, self.watermark):
            self.watermark, self.watermark_since_ms = watermark, now_ms
