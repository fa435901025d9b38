"""The range of whole numbers that a job can hold, and arithmetic within it.

The conformance traces use signed 64-bit integers. JSON and Redis scores hold the numbers of the API as IEEE doubles, so
only ``|t| <= 2**53 - 1`` is exact (RFC 8259, section 6).
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NumberRange:
    """A closed interval of numbers that can be held exactly."""

    lowest: int
    highest: int

    def minus(self, value: int, amount: int) -> int | None:
        """Return ``value - amount``, or None ("no watermark") if the difference is below the range."""
        difference = value - amount
        return difference if difference >= self.lowest else None

    def plus(self, value: int, amount: int) -> int:
        """Return ``value + amount``, but at most the highest number of the range."""
        return min(value + amount, self.highest)


INT64 = NumberRange(-(2**63) + 1, 2**63 - 1)
"""Signed 64-bit integers, except the lowest, which stands for "no watermark" in the conformance traces."""

EXACT_DOUBLE = NumberRange(-(2**53) + 1, 2**53 - 1)
"""The integers that an IEEE double holds without gaps: the range of the API and of the store."""


def highest(*values: int | None) -> int | None:
    """Return the highest value that is not None; None if all values are None."""
    present = [value for value in values if value is not None]
    return max(present) if present else None


def above(a: int | None, b: int | None) -> bool:
    """Return whether watermark ``a`` is ahead of ``b``; None is behind every number."""
    return a is not None and (b is None or a > b)


def by_value(value: int | None) -> tuple[bool, int]:
    """Return a key that sorts watermarks, None first."""
    return value is not None, value or 0
