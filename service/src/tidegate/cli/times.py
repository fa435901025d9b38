"""Moments and durations from the command line: what is none is a wrong command line."""

from collections.abc import Callable
from typing import TypeVar

import typer

from tidegate import times

Read = TypeVar("Read")


def moment(text: str) -> int:
    """:raises typer.BadParameter: see :func:`tidegate.times.moment`."""
    return _read(times.moment, text)


def duration_s(text: str) -> float:
    """:raises typer.BadParameter: see :func:`tidegate.times.duration_s`."""
    return _read(times.duration_s, text)


def _read(read: Callable[[str], Read], text: str) -> Read:
    try:
        return read(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
