"""The range of whole numbers a machine may hold, and arithmetic that never leaves it.

Two ranges occur. The conformance traces speak of signed 64-bit integers. The API's numbers travel through JSON and
through Redis scores, which are IEEE doubles, so there only ``|t| <= 2**53 - 1`` is exact (RFC 8259, section 6).
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NumberRange:
    """The closed interval of numbers that can be held exactly."""

    lowest: int
    highest: int

    def holds(self, value: int) -> bool:
        return self.lowest <= value <= self.highest

    def minus(self, value: int, amount: int) -> int | None:
        """``value - amount``, or None ("no watermark") where that falls below the range."""
        difference = value - amount
        return difference if difference >= self.lowest else None

    def plus(self, value: int, amount: int) -> int:
        """``value + amount``, or the highest number where that lies beyond the range."""
        return min(value + amount, self.highest)


INT64 = NumberRange(-(2**63) + 1, 2**63 - 1)
"""Signed 64 bits; the lowest of them, -2**63, stands for "no watermark"."""

EXACT_DOUBLE = NumberRange(-(2**53) + 1, 2**53 - 1)
"""What an IEEE double holds exactly, without gaps: the range of the API and of the store."""


def highest(*values: int | None) -> int | None:
    """The highest of the values that are there; None where none is."""
    present = [value for value in values if value is not None]
    return max(present) if present else None


def above(a: int | None, b: int | None) -> bool:
    """Whether watermark ``a`` is ahead of ``b``, None being behind every number."""
    return a is not None and (b is None or a > b)


def by_value(value: int | None) -> tuple[bool, int]:
    """A key that sorts watermarks, None first."""
    return value is not None, value or 0
