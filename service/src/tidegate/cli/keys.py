"""``tidegate keys``: create, list, replace and revoke the keys of a file.

What reads the file is imported by the commands: ``tidegate --help`` does not wait for it.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from tidegate.auth.roles import Role
from tidegate.cli.coordinator import HERE, Coordinator, Url
from tidegate.cli.output import table_of, tell
from tidegate.cli.times import duration_s
from tidegate.times import MS, shown

keys = typer.Typer(no_args_is_help=True, help="Who may do what to which jobs.")

File = Annotated[Path | None, typer.Option("--file", help="File of the keys; by default TIDEGATE_KEYS_FILE.")]
Name = Annotated[str, typer.Argument(help="Name of the key; the history names it with every action.")]


@keys.command()
def create(
    name: Name,
    role: Annotated[Role, typer.Option(help="What it may be used for.")],
    prefix: Annotated[str, typer.Option(help="For jobs whose names begin so; without, for all jobs.")] = "",
    lasts: Annotated[str | None, typer.Option(help="When it expires: 12h, 90d; without, never.")] = None,
    max_requests: Annotated[int | None, typer.Option(min=1, help="Calls a second at one replica.")] = None,
    max_waiting: Annotated[int | None, typer.Option(min=1, help="Clients that wait at one replica.")] = None,
    max_jobs: Annotated[int | None, typer.Option(min=1, help="Jobs with its prefix.")] = None,
    max_substreams: Annotated[int | None, typer.Option(min=1, help="Substreams of one job.")] = None,
    file: File = None,
) -> None:
    """Create a key and print it, this once: the file has only its hash."""
    from tidegate.auth import keyring

    quotas = keyring.Quotas(requests_per_s=max_requests, waiting=max_waiting, jobs=max_jobs, substreams=max_substreams)
    duration = None if lasts is None else timedelta(seconds=duration_s(lasts))
    with _one_line():
        path = _path(file)
        key = keyring.create(path, name, role, prefix, duration, quotas)
    typer.echo(key)
    jobs = f"jobs {prefix}*" if prefix else "all jobs"
    typer.echo(f"{name} may {role} {jobs}. Its hash is in {path}; the key itself is nowhere but here.", err=True)


@keys.command("list")
def list_keys(
    file: File = None,
    used: Annotated[bool, typer.Option("--used", help="Ask the coordinator when each key was last used.")] = False,
    url: Url = HERE,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """List the keys, without anything secret."""
    from tidegate.auth import keyring

    if used:
        found: list[dict[str, Any]] = Coordinator(url).call("GET", "/v1/keys")["keys"]
    else:
        with _one_line():
            read = keyring.read(_path(file))
        found = [key.model_dump(mode="json", exclude={"sha256"}, exclude_defaults=True) for key in read]
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    columns = ["name", "role", "jobs", "created", "expires", "quotas", *(["last used"] if used else [])]
    table = table_of(*columns)
    for key in found:
        quotas = ", ".join(f"{name} {limit}" for name, limit in (key.get("quotas") or {}).items() if limit is not None)
        cells = [
            key["name"],
            key["role"],
            f"{key.get('prefix', '')}*",
            key["created"],
            key.get("expires") or "never",
            quotas or "none",
        ]
        if used:
            at_s = key["last_used_s"]
            cells.append("never" if at_s is None else shown(at_s * MS))
        table.add_row(*cells)
    tell(table)


@keys.command()
def rotate(
    name: Name,
    keep: Annotated[str, typer.Option(help="How long the key before it stays valid: 0s, 12h, 7d.")] = "1d",
    file: File = None,
) -> None:
    """Replace a key: create another under its name, and let the one before it expire."""
    from tidegate.auth import keyring

    duration = timedelta(seconds=duration_s(keep))
    with _one_line():
        path = _path(file)
        key = keyring.rotate(path, name, duration)
    typer.echo(key)
    typer.echo(f"This is {name} from now on. The key before it expires in {keep}.", err=True)


@keys.command()
def revoke(name: Name, file: File = None) -> None:
    """Remove a key: within two seconds no replica knows it any more."""
    from tidegate.auth import keyring

    with _one_line():
        keyring.revoke(_path(file), name)
    typer.echo(f"{name} is revoked.", err=True)


def _path(file: Path | None) -> Path:
    from tidegate.auth.keyring import KeysUnusable
    from tidegate.settings import load_settings

    path = file or load_settings().keys_file
    if path is None:
        raise KeysUnusable("Say which file holds the keys: --file keys.json, or TIDEGATE_KEYS_FILE.")
    return path


@contextmanager
def _one_line() -> Iterator[None]:
    """End the command with one line if the file of the keys, or a setting, cannot be used."""
    from tidegate.auth.keyring import KeysUnusable
    from tidegate.settings import SettingsError

    try:
        yield
    except (KeysUnusable, SettingsError) as error:
        typer.echo(f"tidegate: {error}", err=True)
        raise typer.Exit(1) from None
