"""Staging: the reports of open batches, which take effect when their batch commits."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from tidegate.domain.rows import RowsByDelay

Value = TypeVar("Value")


@dataclass(slots=True)
class Staged:
    """The staged reports of a query: highest times by substream, and rows and delays by partition and substream.

    ``names`` contains the substreams of all reports, in order, also those whose values were set aside. ``coming``
    contains the substreams that were unknown when they were staged.
    """

    names: dict[str, None] = field(default_factory=dict)
    event_times: dict[str, int] = field(default_factory=dict)
    watermarks: dict[str, int] = field(default_factory=dict)
    rows: dict[tuple[int, str], int] = field(default_factory=dict)
    future_rows: dict[tuple[int, str], int] = field(default_factory=dict)
    delays: dict[tuple[int, str], RowsByDelay] = field(default_factory=dict)
    coming: set[str] = field(default_factory=set)


def raise_each(highest: dict[str, int], column: Mapping[str, int]) -> None:
    """Raise the values in ``highest`` to those in ``column``, by substream."""
    for name, value in column.items():
        highest[name] = max(value, highest.get(name, value))


def set_each(by_partition: dict[tuple[int, str], Value], partition: int, column: Mapping[str, Value]) -> None:
    """Set values by partition and substream; a later report of a partition replaces its values."""
    by_partition |= {(partition, name): value for name, value in column.items()}
