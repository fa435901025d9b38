"""``tidegate keys``: create, list, rotate and revoke the keys of a file.

The commands import the modules that read the file, so that ``tidegate --help`` does not wait for them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from tidegate.auth.roles import Role
from tidegate.cli.coordinator import Coordinator
from tidegate.cli.options import LOCAL_URL, AsJson, Url, duration_s
from tidegate.cli.output import show, show_json, table_of
from tidegate.times import MS, format_time

keys = typer.Typer(no_args_is_help=True, help="Create, list, rotate and revoke keys.")

File = Annotated[Path | None, typer.Option("--file", help="File of the keys; by default TIDEGATE_KEYS_FILE.")]
Name = Annotated[str, typer.Argument(help="Name of the key. The history names it with every action.")]


@keys.command()
def create(
    name: Name,
    role: Annotated[Role, typer.Option(help="Role of the key.")],
    prefix: Annotated[str, typer.Option(help="Prefix of the jobs of the key; left out, all jobs.")] = "",
    lasts: Annotated[str | None, typer.Option(help="Duration: 12h, 90d; left out, it does not expire.")] = None,
    max_requests: Annotated[int | None, typer.Option(min=1, help="Limit on calls per second at one replica.")] = None,
    max_waiting: Annotated[int | None, typer.Option(min=1, help="Limit on waiting clients at one replica.")] = None,
    max_jobs: Annotated[int | None, typer.Option(min=1, help="Limit on jobs with its prefix.")] = None,
    max_substreams: Annotated[int | None, typer.Option(min=1, help="Limit on substreams of one job.")] = None,
    file: File = None,
) -> None:
    """Create a key and print it. It cannot be shown again: the file has only its hash."""
    from tidegate.auth import keyring
    from tidegate.auth.keys import Quotas

    quotas = Quotas(requests_per_s=max_requests, waiting=max_waiting, jobs=max_jobs, substreams=max_substreams)
    duration = None if lasts is None else timedelta(seconds=duration_s(lasts))
    with _exit_on_error():
        path = _path(file)
        key = keyring.create(path, name, role, prefix, duration, quotas)
    typer.echo(key)
    jobs = f"jobs {prefix}*" if prefix else "all jobs"
    typer.echo(
        f"Created the key {name} with the role {role} for {jobs}. Its hash is in {path}. Store the key now: it "
        "cannot be shown again.",
        err=True,
    )


@keys.command("list")
def list_keys(
    file: File = None,
    used: Annotated[bool, typer.Option("--used", help="Ask the coordinator for the last use of each key.")] = False,
    url: Url = LOCAL_URL,
    as_json: AsJson = False,
) -> None:
    """List the keys, without their secrets."""
    from tidegate.auth import keyring

    if used:
        listed: list[dict[str, Any]] = Coordinator(url).call("GET", "/v1/keys")["keys"]
    else:
        with _exit_on_error():
            read = keyring.read(_path(file))
        listed = [key.model_dump(mode="json", exclude={"sha256"}, exclude_defaults=True) for key in read]
    if as_json:
        show_json(listed)
        return
    table = table_of("name", "role", "jobs", "created", "expires", "quotas", *(["last used"] if used else []))
    for key in listed:
        table.add_row(*_cells(key), *([_last_used(key)] if used else []))
    show(table)


def _cells(key: dict[str, Any]) -> list[str]:
    quotas = ", ".join(f"{name} {limit}" for name, limit in (key.get("quotas") or {}).items() if limit is not None)
    prefix, expires = key.get("prefix", ""), key.get("expires") or "never"
    return [key["name"], key["role"], f"{prefix}*", key["created"], expires, quotas or "none"]


def _last_used(key: dict[str, Any]) -> str:
    at_s = key["last_used_s"]
    return "never" if at_s is None else format_time(at_s * MS)


@keys.command()
def rotate(
    name: Name,
    keep: Annotated[str, typer.Option(help="Time for which the previous key stays valid: 0s, 12h, 7d.")] = "1d",
    file: File = None,
) -> None:
    """Create another key under the same name, and let the previous one expire."""
    from tidegate.auth import keyring

    duration = timedelta(seconds=duration_s(keep))
    with _exit_on_error():
        key = keyring.rotate(_path(file), name, duration)
    typer.echo(key)
    typer.echo(f"Created the new key {name}. The previous key expires in {keep}.", err=True)


@keys.command()
def revoke(name: Name, file: File = None) -> None:
    """Revoke a key. All replicas refuse it within two seconds."""
    from tidegate.auth import keyring

    with _exit_on_error():
        keyring.revoke(_path(file), name)
    typer.echo(f"Revoked the key {name}.", err=True)


def _path(file: Path | None) -> Path:
    from tidegate.auth.keys import KeysUnusable
    from tidegate.settings import load_settings

    path = file or load_settings().keys_file
    if path is None:
        raise KeysUnusable("Give the file of the keys: --file keys.json, or TIDEGATE_KEYS_FILE.")
    return path


@contextmanager
def _exit_on_error() -> Iterator[None]:
    """Print one line and exit if the file of the keys, or a setting, is not valid."""
    from tidegate.auth.keys import KeysUnusable
    from tidegate.settings import SettingsError

    try:
        yield
    except (KeysUnusable, SettingsError) as error:
        typer.echo(f"tidegate: {error}", err=True)
        raise typer.Exit(1) from None
