"""``tidegate`` and ``python -m tidegate``."""

import json

import typer

from tidegate.cli import act, look
from tidegate.cli.completeness import completeness
from tidegate.cli.keys import keys
from tidegate.cli.late import late
from tidegate.cli.serve import serve
from tidegate.cli.simulate import simulate

cli = typer.Typer(add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True)
cli.command()(serve)
for look_ in (look.jobs, look.status, look.explain, look.history, look.watch, look.wait, completeness, late):
    cli.command(rich_help_panel="Look")(look_)
for act_ in (act.declare, act.idle, act.done, act.evict, act.retire, act.hold, act.release, act.complete, act.reopen):
    cli.command(rich_help_panel="Act")(act_)
cli.command(rich_help_panel="Try")(simulate)
cli.add_typer(keys, name="keys")


@cli.callback()
def tidegate() -> None:
    """A watermark coordinator for Spark."""


@cli.command()
def openapi() -> None:
    """Print the OpenAPI document of this version."""
    from tidegate.app import create_app
    from tidegate.settings import Settings

    typer.echo(json.dumps(create_app(Settings(), "redis://localhost").openapi(), indent=2))


def main() -> None:
    cli()


if __name__ == "__main__":
    main()
