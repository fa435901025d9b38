"""The accounting of a batch's rows, by row class and by hour."""

from collections.abc import Sequence
from operator import gt
from typing import Self

from pydantic import Field, model_validator

from tidegate.domain.completeness import ENTRIES_KEPT, BatchAccounting, LateDisposition, RowCounts, sum_by_hour
from tidegate.views.types import Column, Count, FieldError, Names, Request, RowsByHour, Text, check_equal_lengths

COLUMNS = ("on_time", "late", "null_event_time", "updated", "future", "hours")


class RowAccounting(Request):
    """The rows of a batch by row class, in columns with a value for each substream."""

    rule: Text = Field(
        min_length=1, max_length=100, description="Rule by which rows are classified.", examples=["pinned_watermark"]
    )
    substreams: Names = Field(description="Names of the substreams.", examples=[["HNL", "ORD"]])
    on_time: Column[Count] = Field(
        description="Rows at or above the pinned watermark. With windows: rows whose windows are all open.",
        examples=[[96, 312]],
    )
    late: Column[Count] = Field(
        description="Rows below the pinned watermark. With windows: rows with a window that no longer accepts rows.",
        examples=[[3, 0]],
    )
    null_event_time: Column[Count] = Field(description="Rows without an event time.", examples=[[0, 0]])
    updated: Column[Count] | None = Field(
        default=None,
        description="Rows with a closed window within its allowed lateness. Such a row changes a written result.",
        examples=[[1, 0]],
    )
    future: Column[Count] | None = Field(
        default=None, description="Rows with an event time too far in the future.", examples=[[0, 0]]
    )
    late_disposition: LateDisposition = Field(
        default="dropped",
        description="What happened to late rows: `dropped`, or `diverted` to a side output.",
        examples=["dropped"],
    )
    hours: Column[RowsByHour | None] | None = Field(
        default=None,
        description="For each substream, tuples of an hour (event time divided by 3,600,000, rounded down), its rows, "
        "its updated rows and its late rows. Null if unknown.",
        examples=[[[[377097, 100, 1, 3]], [[377098, 312, 0, 0]]]],
    )
    all_hours: RowsByHour | None = Field(
        default=None,
        description="Rows of the whole batch by hour, in the form of `hours`. Send them if `hours` lacks some rows.",
        examples=[[[377097, 100, 1, 3], [377098, 312, 0, 0]]],
    )

    @model_validator(mode="after")
    def _check_columns(self) -> Self:
        check_equal_lengths(self, COLUMNS, "substreams")
        entries = sum(len(rows or ()) for rows in self.hours or ())
        if entries > ENTRIES_KEPT:
            raise FieldError("hours", f"has {entries} entries; the limit is {ENTRIES_KEPT}")
        self._check_hours()
        self._check_all_hours()
        return self

    def _classified(self) -> list[tuple[int, int, int]]:
        """Return the numbers of on-time, updated and late rows of each substream."""
        return [*zip(self.on_time, self.updated or self._zeros(), self.late, strict=True)]

    def _zeros(self) -> list[int]:
        return [0] * len(self.substreams)

    def _check_hours(self) -> None:
        for name, rows, counts in zip(self.substreams, self.hours or (), self._classified(), strict=False):
            if not _are_within(rows or (), counts):
                raise FieldError("hours", f"has more rows of {name} (in total, updated or late) than its counts")

    def _check_all_hours(self) -> None:
        total = tuple(map(sum, zip(*self._classified(), strict=True))) or (0, 0, 0)
        if not _are_within(self.all_hours or (), total):
            raise FieldError("all_hours", "has more rows (in total, updated or late) than the counts")
        if not self.all_hours:
            return
        of_all, none = sum_by_hour(self.all_hours), (0, 0, 0)
        of_substreams = sum_by_hour(row for rows in self.hours or () for row in rows or ())
        for hour, counts in of_substreams.items():
            if any(map(gt, counts, of_all.get(hour, none))):
                raise FieldError("all_hours", f"has fewer rows of hour {hour} than the substreams")

    def accounting(self) -> BatchAccounting:
        """Return the accounting as a domain object."""
        zeros = self._zeros()
        columns = (self.on_time, self.updated or zeros, self.late, self.null_event_time, self.future or zeros)
        counts = tuple(RowCounts(*row) for row in zip(*columns, strict=True))
        hours = tuple(tuple(rows or ()) for rows in self.hours or ())
        return BatchAccounting(
            self.rule, tuple(self.substreams), counts, self.late_disposition, hours, tuple(self.all_hours or ())
        )


def _are_within(hours: Sequence[tuple[int, int, int, int]], counts: tuple[int, ...]) -> bool:
    """Return whether rows by hour are consistent, and do not exceed the counts of on-time, updated and late rows."""
    on_time, updated, late = counts
    return (
        all(rows >= changed + lost for _, rows, changed, lost in hours)
        and sum(rows for _, rows, _, _ in hours) <= on_time + updated + late
        and sum(changed for _, _, changed, _ in hours) <= updated
        and sum(lost for _, _, _, lost in hours) <= late
    )
