"""Arguments and options that several commands share."""

import os
from collections.abc import Callable
from contextlib import redirect_stderr
from functools import partial
from io import StringIO
from typing import Annotated, Any, TypeVar

import typer

from tidegate import times
from tidegate.cli.coordinator import Coordinator

Value = TypeVar("Value")

LOCAL_URL = "http://127.0.0.1:8000"
COMPLETION_S = 1.0


def _jobs_with_prefix(context: typer.Context, incomplete: str) -> list[str]:
    """Return names of jobs for shell completion. Return none if the coordinator does not answer within a second."""
    coordinator = Coordinator(context.params.get("url") or os.environ.get("TIDEGATE_URL") or LOCAL_URL)
    # A page begins after its cursor, so the cursor is shorter than the name to complete.
    parameters = {"after": incomplete[:-1], "limit": 1000}
    with redirect_stderr(StringIO()):  # an error message would disturb the prompt
        try:
            page = coordinator.call("GET", "/v1/jobs", read_s=COMPLETION_S, params=parameters)
        except typer.Exit:
            return []
    return [job["job"] for job in page["jobs"] if job["job"].startswith(incomplete)]


Job = Annotated[str, typer.Argument(help="Name of the job.", autocompletion=_jobs_with_prefix)]
Url = Annotated[str, typer.Option(envvar="TIDEGATE_URL", help="URL of the coordinator.", rich_help_panel="Connection")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Substream = Annotated[str | None, typer.Option(help="Name of a substream. Omit it for the whole job.")]
QueryOfSubstream = Annotated[
    str | None,
    typer.Option(
        "--query",
        help="Query of the substream. Required only if several queries have a substream with this name. Empty for "
        "reports without batches.",
    ),
]
Force = Annotated[
    bool,
    typer.Option(
        "--force", help="Accept a time that looks like seconds, microseconds or a date in place of milliseconds."
    ),
]


def time(text: str, round_up: bool = False) -> int:
    """Return Unix milliseconds from a text on the command line.

    Args:
        text: See :func:`tidegate.times.parse_time`.
        round_up: Whether a part of a millisecond is rounded up instead of down.

    Raises:
        typer.BadParameter: If the text is not a time.
    """
    return _parsed(partial(times.parse_time, round_up=round_up), text)


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


def time_option(help_text: str, round_up: bool = False) -> Any:
    """Return a command-line option that converts a time to Unix milliseconds; ``round_up`` is as in :func:`time`."""
    return typer.Option(parser=partial(time, round_up=round_up), metavar="TIME", help=help_text)


def duration_option(help_text: str) -> Any:
    """Return the option for a duration, whose value is milliseconds."""
    return typer.Option(parser=duration_ms, metavar="DURATION", help=help_text)
