"""Merging: many substreams' watermarks into one, and when it may be relied upon."""

from collections.abc import Collection
from dataclasses import dataclass

from tidegate.domain.numbers import above, highest
from tidegate.domain.throttle import Throttle, offer


@dataclass(frozen=True, slots=True)
class OpenPin:
    """The lowest pin among the open batches (None: a batch that began before there was a watermark), and whose."""

    value: int | None
    query: str

    @staticmethod
    def order(pin: "OpenPin") -> tuple[bool, int, str]:
        return pin.value is not None, pin.value or 0, pin.query


@dataclass(slots=True)
class Coalescer:
    """Holds ``coalesced`` (C, what the data says), ``watermark`` (W, what was released) and ``lead``.

    Invariants: neither C nor W goes back; W never passes C, nor the pin of an open batch that it had not passed before.
    """

    coalesced_since_ms: int
    watermark_since_ms: int
    coalesced: int | None = None
    watermark: int | None = None
    lead: int | None = None

    def merge(self, live: Collection[int | None], throttle: Throttle, now_ms: int) -> None:
        """Looks at the watermarks of the live substreams; where none is live, the lead is all there is to wait for."""
        self.lead = highest(self.lead, *live)
        if live:
            merged = None if None in live else min(watermark for watermark in live if watermark is not None)
        else:
            merged = self.lead
        self.advance(offer(throttle, merged, self.coalesced), now_ms)

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
