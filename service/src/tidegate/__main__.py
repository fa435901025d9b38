"""The entry point of ``tidegate`` and ``python -m tidegate``."""

import json
from typing import Annotated

import typer

from tidegate import __version__
from tidegate.cli import actions, frames, history, views
from tidegate.cli.airflow import notify
from tidegate.cli.keys import keys
from tidegate.cli.simulate import simulate
from tidegate.cli.tables import table
from tidegate.cli.views import completeness, late

cli = typer.Typer(pretty_exceptions_enable=False, no_args_is_help=True)


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"tidegate {__version__}")
        raise typer.Exit


@cli.callback()
def tidegate(
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Coordinate the watermarks of Spark jobs."""


@cli.command(rich_help_panel="Service")
def serve(
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Allow addresses other than loopback without keys.")
    ] = False,
    stop_with_stdin: Annotated[
        bool, typer.Option("--stop-with-stdin", help="Stop at the end of standard input.")
    ] = False,
) -> None:
    """Run the coordinator. Environment variables TIDEGATE_<NAME> contain its settings.

    TIDEGATE_PORT and TIDEGATE_HOST: where it listens (127.0.0.1:8000). TIDEGATE_REDIS_URL: the store. Without it, the
    coordinator starts an embedded store, with its data in the folder tidegate-data. The page Configuration of the
    documentation lists all settings.
    """
    # Neither another command nor an invalid setting must wait for the web framework, so it is imported here.
    from tidegate.settings import SettingsError, load_settings

    try:
        settings = load_settings()
    except SettingsError as error:
        raise _refused(error) from None

    from tidegate.auth.keys import KeysUnusable
    from tidegate.runtime.traces import CannotTrace
    from tidegate.server import CannotServe, serve
    from tidegate.store.connection import StoreUnavailable

    try:
        serve(settings, insecure=insecure, stop_with_stdin=stop_with_stdin)
    except (CannotServe, CannotTrace, KeysUnusable, StoreUnavailable) as error:
        raise _refused(error) from None


def _refused(error: Exception) -> typer.Exit:
    """Print an error on one line, and return the exit with its status."""
    typer.echo(f"tidegate: {error}", err=True)
    return typer.Exit(1)


@cli.command(rich_help_panel="Service")
def openapi() -> None:
    """Print the OpenAPI document of this version."""
    from tidegate.app import create_app
    from tidegate.settings import Settings

    typer.echo(json.dumps(create_app(Settings(), "redis://localhost").openapi(), indent=2))


cli.add_typer(keys, name="keys", rich_help_panel="Service")
cli.add_typer(notify, name="notify", rich_help_panel="Service")
for view in (
    views.jobs,
    views.status,
    views.explain,
    views.holders,
    frames.frames,
    frames.consumers,
    history.history,
    history.watch,
    history.wait,
    completeness,
    late,
    table,
):
    cli.command(rich_help_panel="Views")(view)
for action in (
    actions.declare,
    actions.idle,
    actions.done,
    actions.evict,
    actions.restore,
    actions.retire,
    actions.hand_over,
    actions.hold,
    actions.release,
    frames.forget_consumer,
    actions.complete,
    actions.reopen,
    actions.configure,
    actions.reset,
    actions.delete,
):
    cli.command(rich_help_panel="Actions")(action)
cli.command(rich_help_panel="Simulation")(simulate)


def main() -> None:
    """Run the command line."""
    cli()


if __name__ == "__main__":
    main()
