"""Arguments and options that several commands share."""

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import typer

from tidegate import times

Value = TypeVar("Value")

LOCAL_URL = "http://127.0.0.1:8000"

Job = Annotated[str, typer.Argument(help="Name of the job.")]
Url = Annotated[str, typer.Option(envvar="TIDEGATE_URL", help="URL of the coordinator.", rich_help_panel="Connection")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Substream = Annotated[str | None, typer.Option(help="Name of a substream. Omit it for the whole job.")]
SubstreamQuery = Annotated[str, typer.Option(help="Query of the substream.")]


def time(text: str) -> int:
    """Return Unix milliseconds from a text on the command line.

    Raises:
        typer.BadParameter: If the text is not a time.
    """
    return _parsed(times.parse_time, text)


def duration_s(text: str) -> float:
    """Return seconds from a text on the command line.

    Raises:
        typer.BadParameter: If the text is not a duration.
    """
    return _parsed(times.parse_duration_s, text)


def duration_ms(text: str) -> int:
    """Return milliseconds from a text on the command line.

    Raises:
        typer.BadParameter: If the text is not a duration.
    """
    return round(duration_s(text) * times.MS)


def _parsed(parse: Callable[[str], Value], text: str) -> Value:
    try:
        return parse(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def time_option(help_text: str) -> Any:
    """Return a command-line option that converts a time to Unix milliseconds."""
    return typer.Option(parser=time, metavar="TIME", help=help_text)


def duration_option(help_text: str) -> Any:
    """Return the option for a duration, whose value is milliseconds."""
    return typer.Option(parser=duration_ms, metavar="DURATION", help=help_text)
