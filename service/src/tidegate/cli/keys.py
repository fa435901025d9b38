"""``tidegate keys``: makes, lists and revokes the keys of a file."""

import json
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.table import Table

from tidegate.auth import keyring
from tidegate.auth.keyring import KeysUnusable, Role
from tidegate.settings import SettingsError, load_settings

keys = typer.Typer(no_args_is_help=True, help="Who may do what to which jobs.")

File = Annotated[Path | None, typer.Option("--file", help="The file of the keys; else TIDEGATE_KEYS_FILE.")]
Name = Annotated[str, typer.Argument(help="What the key is called, also in the history of what was done with it.")]


@keys.command()
def create(
    name: Name,
    role: Annotated[Role, typer.Option(help="What it may be used for.")],
    prefix: Annotated[str, typer.Option(help="For jobs whose names begin so; without, for all.")] = "",
    file: File = None,
) -> None:
    """Make a key and print it, this once: only its hash is kept."""
    try:
        path = _path(file)
        key = keyring.create(path, name, role, prefix)
    except (KeysUnusable, SettingsError) as error:
        _fail(error)
    typer.echo(key)
    jobs = f"jobs {prefix}*" if prefix else "all jobs"
    typer.echo(f"{name} may {role} {jobs}. Its hash is in {path}; the key itself is nowhere but here.", err=True)


@keys.command("list")
def list_keys(
    file: File = None, as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False
) -> None:
    """List the keys, without anything secret."""
    try:
        found = keyring.read(_path(file))
    except (KeysUnusable, SettingsError) as error:
        _fail(error)
    if as_json:
        typer.echo(json.dumps([key.model_dump(mode="json", exclude={"sha256"}) for key in found], indent=2))
        return
    table = Table("name", "role", "jobs", "created", box=None)
    for key in found:
        table.add_row(key.name, key.role, f"{key.prefix}*", key.created.isoformat())
    Console().print(table)


@keys.command()
def revoke(name: Name, file: File = None) -> None:
    """Take a key out of the file: within seconds no replica knows it any more."""
    try:
        keyring.revoke(_path(file), name)
    except (KeysUnusable, SettingsError) as error:
        _fail(error)
    typer.echo(f"{name} is revoked.", err=True)


def _path(file: Path | None) -> Path:
    path = file or load_settings().keys_file
    if path is None:
        raise KeysUnusable("Say which file holds the keys: --file keys.json, or TIDEGATE_KEYS_FILE.")
    return path


def _fail(error: Exception) -> NoReturn:
    typer.echo(f"tidegate: {error}", err=True)
    raise typer.Exit(1) from None
