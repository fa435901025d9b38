"""What a stream's rows are made into, in the words of Spark's ``groupBy(window(...)).agg(...)``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tidegate_spark.errors import InvalidUsage
from tidegate_spark.windows.aggregates import Aggregate
from tidegate_spark.windows.frame import Frame
from tidegate_spark.windows.state import StateStore

if TYPE_CHECKING:
    from tidegate_spark.stream import Stream

OURS = "tidegate_"
"""How the columns begin that a stream gets on its way to windows."""


def check_not_ours(names: Sequence[str]) -> None:
    """:raises InvalidUsage: where columns of a stream could be mistaken for those that it gets on its way."""
    if ours := [name for name in names if name.lower().startswith(OURS)]:
        raise InvalidUsage(f"{', '.join(ours)}: columns of the stream must not begin with {OURS!r}.")


@dataclass(frozen=True)
class Windowed:
    """What a stream's rows are made into."""

    frame: Frame
    by: tuple[str, ...]
    aggregates: Mapping[str, Aggregate]
    lateness: int = 0
    store: StateStore | None = None


@dataclass(frozen=True)
class WindowsOf:
    """Windows of a stream, on their way to results."""

    stream: "Stream"
    frame: Frame

    def agg(self, *by: str, **aggregates: Aggregate) -> "Stream":
        """A row for each window and each value of the columns ``by``, with a column for each aggregate.

        The function of :meth:`Stream.foreach_batch` gets: ``window`` (a struct of ``start`` and ``end``), the columns
        ``by``, those of the aggregates, and ``previous``: null where the window has just closed, else a struct of what
        the aggregates were before rows came that changed them.

        :param aggregates: such as :func:`tidegate_spark.windows.count`.
        :raises InvalidUsage: for no aggregate, or columns that are not there or of the same name.
        """
        if not aggregates:
            raise InvalidUsage("agg() takes the results by name: agg('dest', flights=windows.count()).")
        for name, aggregate in aggregates.items():
            if not isinstance(aggregate, Aggregate):
                raise InvalidUsage(
                    f"{name} is {aggregate!r}, and must be one of tidegate_spark.windows: count(), sum('delay'), or "
                    "merged(...) for any other that Spark can merge."
                )
        there = self.stream.df.columns
        if missing := [name for name in by if name not in there]:
            raise InvalidUsage(f"{', '.join(missing)}: no column of the stream; it has: {', '.join(there)}.")
        names = [name.lower() for name in ("window", *by, *aggregates, "previous")]  # as Spark compares them
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise InvalidUsage(f"{', '.join(twice)}: two columns of the result would have this name.")
        check_not_ours(there)
        # Of a broken clock's row a window would be kept until its time has come.
        return replace(self.stream, windowed=Windowed(self.frame, by, aggregates), future_goes="late")
