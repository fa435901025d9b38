"""``tidegate table``: up to which event time a table is complete, by what its own history says."""

from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import entry_points
from typing import Annotated, Any

import typer

from tidegate.cli.options import AsJson, show, show_json

READERS = "tidegate.tables"
"""Entry point of the packages that read tables. The client has one; the coordinator runs without the client."""


def table(
    name: Annotated[
        str,
        typer.Argument(
            metavar="TABLE",
            help="Path of a table of Delta Lake or Iceberg, or name of an Iceberg table in a catalog of pyiceberg: "
            "catalog.database.table.",
        ),
    ],
    job: Annotated[
        str | None, typer.Option(help="Name of the job. Required only if several jobs have written claims.")
    ] = None,
    version: Annotated[
        int | None, typer.Option(help="Version of a Delta table, or id of a snapshot of Iceberg; default: the latest.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show up to which event time a table has all rows on time, and at which version.

    This command needs the package tidegate-spark. It does not call the coordinator.
    """
    try:
        claim = _reader()(name, job=job, version=version)
    except (ValueError, OSError) as error:
        typer.echo(f"tidegate: {error}", err=True)
        raise typer.Exit(1) from None
    if claim is None:
        who = "No job has claimed anything" if job is None else f"Job {job} has claimed nothing"
        typer.echo(
            f"tidegate: {who} in {name}. batch.write_once() writes the claim of the batch before, so the first batch "
            "has none; publish_watermark() writes the latest one.",
            err=True,
        )
        raise typer.Exit(1)
    if as_json:
        # Versions of Iceberg have up to 63 bits, which JavaScript does not keep exactly.
        versions = {member: getattr(claim, member) for member in ("version", "claimed_in")}
        texts = {member: None if value is None else str(value) for member, value in versions.items()}
        show_json({**asdict(claim), **texts})
    else:
        show(str(claim))


def _reader() -> Callable[..., Any]:
    for point in entry_points(group=READERS, name="complete_up_to"):
        reader: Callable[..., Any] = point.load()
        return reader
    raise ValueError("this command needs the package tidegate-spark: install it.")
