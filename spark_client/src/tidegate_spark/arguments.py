"""Arguments of a job's methods, converted to the form of the API."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from tidegate_spark.batch import EPOCH
from tidegate_spark.errors import InvalidUsage
from tidegate_spark.substreams import Values, name_of


def time_number(name: str, time: Any, round_up: bool = False) -> int:
    """Return a time as a number: milliseconds since the epoch for a datetime, and a number unchanged.

    Args:
        name: Name of the argument, for errors.
        time: A datetime with a time zone, or a whole number.
        round_up: Whether a part of a millisecond is rounded up instead of down.

    Raises:
        InvalidUsage: If the datetime has no time zone, or the time has another type.
    """
    if isinstance(time, datetime):
        if time.tzinfo is None:
            raise InvalidUsage(f"{name}={time!r} has no time zone: give it one, such as datetime.UTC.")
        whole, rest = divmod(time - EPOCH, timedelta(milliseconds=1))
        return whole + (round_up and bool(rest))
    if not isinstance(time, int) or isinstance(time, bool):
        raise InvalidUsage(f"{name} must be a datetime with a time zone, or a whole number; it is {time!r}.")
    return time


def check_list(method: str, what: str, values: Any) -> None:
    """Raise InvalidUsage if a single value is given instead of a list; ``what`` is the plural noun in the error."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise InvalidUsage(f"{method} takes a list of {what}, not {values!r}; write [{values!r}].")


def names_of(method: str, substreams: Sequence[Values]) -> list[str]:
    """Return the names of substreams; raise InvalidUsage if a single value is given instead of a list."""
    check_list(method, "substreams", substreams)
    return [name_given(method, values) for values in substreams]


def name_given(argument: str, values: Any) -> str:
    """Return the name of a substream that a user gives; raise InvalidUsage if its values have other types."""
    parts = values if isinstance(values, tuple) else (values,)
    # Spark's text of another type, such as a boolean, differs from Python's.
    if not parts or not all(part is None or type(part) in (str, int) for part in parts):
        raise InvalidUsage(
            f"{argument}: {values!r} is not a substream: pass the value of its column as a text or an int, or a "
            "tuple of the values of its columns."
        )
    return name_of(values)
