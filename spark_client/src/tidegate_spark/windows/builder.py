"""The builder of windows, modelled on Spark's ``groupBy(window(...)).agg(...)``."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from tidegate_spark.errors import InvalidUsage
from tidegate_spark.frame import RESERVED_PREFIX, Frame
from tidegate_spark.windows.aggregates import Aggregate
from tidegate_spark.windows.state import StateStore

Described = TypeVar("Described")


def check_column_names(names: Sequence[str]) -> None:
    """Raise InvalidUsage if columns of a stream have the reserved prefix."""
    if reserved := [name for name in names if name.lower().startswith(RESERVED_PREFIX)]:
        raise InvalidUsage(
            f"{', '.join(reserved)}: columns of the stream must not begin with {RESERVED_PREFIX!r}; rename them."
        )


@dataclass(frozen=True)
class WindowSettings:
    """The windows of a stream.

    Attributes:
        frame: Size, slide and offset.
        by: The columns to group by.
        aggregates: The aggregates, by name.
        lateness: Allowed lateness: a window accepts rows while the watermark is below its end plus ``lateness``.
        store: The store for the state of the windows; None for files beside the checkpoint.
    """

    frame: Frame
    by: tuple[str, ...]
    aggregates: Mapping[str, Aggregate]
    lateness: int = 0
    store: StateStore | None = None


@dataclass(frozen=True)
class WindowBuilder(Generic[Described]):
    """The windows of a stream, before :meth:`agg` chooses their aggregates."""

    frame: Frame
    columns: Sequence[str]
    attach: Callable[[WindowSettings], Described]

    def agg(self, *by: str, **aggregates: Aggregate) -> Described:
        """Choose the results: one row for each window and each combination of values of the columns ``by``.

        The function of :meth:`Stream.foreach_batch` receives these columns: ``window`` (a struct of ``start`` and
        ``end``), the columns ``by``, one column for each aggregate, and ``previous``. If rows have changed an
        earlier result, ``previous`` is a struct of the earlier aggregates. Otherwise, ``previous`` is null.

        Args:
            by: Columns to group by.
            aggregates: Aggregates by name, such as ``flights=windows.count()``.

        Raises:
            InvalidUsage: If there is no aggregate, or a column is missing, reserved or named twice.
        """
        if not aggregates:
            raise InvalidUsage("agg() needs at least one named aggregate, as in agg('dest', flights=windows.count()).")
        if not all(isinstance(name, str) for name in by):
            raise InvalidUsage(f"agg() takes names of columns to group by, not {', '.join(map(repr, by))}.")
        for name, aggregate in aggregates.items():
            if not isinstance(aggregate, Aggregate):
                raise InvalidUsage(
                    f"{name} is {aggregate!r}; it must be an aggregate of tidegate_spark.windows, such as count() or "
                    "sum('delay'). Make other aggregates with merged(...)."
                )
        if missing := [name for name in by if name not in self.columns]:
            raise InvalidUsage(
                f"agg() names {', '.join(missing)}, not a column of the stream; its columns are "
                f"{', '.join(self.columns)}."
            )
        names = [name.lower() for name in ("window", *by, *aggregates, "previous")]  # as Spark compares them
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise InvalidUsage(
                f"{', '.join(repeated)}: two columns of the result would have this name; choose another name."
            )
        check_column_names(self.columns)
        return self.attach(WindowSettings(self.frame, by, aggregates))
