"""``tidegate keys``: create, list, rotate and revoke the keys of a file.

Each command imports the modules that it needs when it runs, so that ``tidegate --help`` does not wait for them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from tidegate.auth.roles import Role
from tidegate.cli.coordinator import Coordinator
from tidegate.cli.options import LOCAL_URL, AsJson, Url, duration_s, show_json, show_table
from tidegate.times import MS, format_time

keys = typer.Typer(no_args_is_help=True, help="Create, list, rotate and revoke keys.")

File = Annotated[Path | None, typer.Option("--file", help="File of the keys. By default, TIDEGATE_KEYS_FILE.")]
Name = Annotated[str, typer.Argument(help="Name of the key. The history records it with every action.")]


@keys.command()
def create(
    name: Name,
    role: Annotated[Role, typer.Option(help="Role of the key.")],
    prefix: Annotated[str, typer.Option(help="Prefix of the jobs that the key can access. By default, all jobs.")] = "",
    lasts: Annotated[
        str | None, typer.Option(help="Lifetime of the key, such as 90d. By default, the key does not expire.")
    ] = None,
    max_requests: Annotated[int | None, typer.Option(min=1, help="Limit on calls per second at one replica.")] = None,
    burst: Annotated[
        int | None, typer.Option(min=1, help="Limit on calls at once. By default, the calls of one second.")
    ] = None,
    max_waiting: Annotated[int | None, typer.Option(min=1, help="Limit on waiting clients at one replica.")] = None,
    max_jobs: Annotated[int | None, typer.Option(min=1, help="Limit on jobs with the prefix of the key.")] = None,
    max_substreams: Annotated[int | None, typer.Option(min=1, help="Limit on substreams of one job.")] = None,
    file: File = None,
) -> None:
    """Create a key and print it. The file contains only its hash, so the key cannot be shown again."""
    from tidegate.auth import keyring
    from tidegate.auth.keys import Quotas

    quotas = Quotas(
        requests_per_s=max_requests, burst=burst, waiting=max_waiting, jobs=max_jobs, substreams=max_substreams
    )
    duration = None if lasts is None else timedelta(seconds=duration_s(lasts))
    with _keys_file(file) as path:
        key = keyring.create(path, name, role, prefix, duration, quotas)
    typer.echo(key)
    jobs = f"jobs {prefix}*" if prefix else "all jobs"
    typer.echo(
        f"Created the key {name} with the role {role} for {jobs}. Its hash is in {path}. Store the key now, because "
        "it cannot be shown again.",
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
        with _keys_file(file) as path:
            read = keyring.read(path)
        listed = [key.model_dump(mode="json", exclude={"sha256"}, exclude_defaults=True) for key in read]
    if as_json:
        show_json(listed)
        return
    columns = ("name", "role", "jobs", "created", "expires", "quotas", *(["last used"] if used else []))
    show_table(columns, [_cells(key) for key in listed])


def _cells(key: dict[str, Any]) -> list[str]:
    quotas = ", ".join(f"{name} {limit}" for name, limit in (key.get("quotas") or {}).items() if limit is not None)
    prefix, expires = key.get("prefix", ""), key.get("expires") or "never"
    cells = [key["name"], key["role"], f"{prefix}*", key["created"], expires, quotas or "none"]
    if "last_used_s" in key:
        cells.append("never" if key["last_used_s"] is None else format_time(key["last_used_s"] * MS))
    return cells


@keys.command()
def rotate(
    name: Name,
    keep: Annotated[str, typer.Option(help="Time for which the previous key stays valid, such as 12h.")] = "1d",
    file: File = None,
) -> None:
    """Create another key with the same name, and let the previous key expire."""
    from tidegate.auth import keyring

    duration = timedelta(seconds=duration_s(keep))
    with _keys_file(file) as path:
        key = keyring.rotate(path, name, duration)
    typer.echo(key)
    typer.echo(f"Created the new key {name}. The previous key expires after {keep} at the latest.", err=True)


@keys.command()
def revoke(name: Name, file: File = None) -> None:
    """Revoke a key. All replicas refuse it within two seconds."""
    from tidegate.auth import keyring

    with _keys_file(file) as path:
        keyring.revoke(path, name)
    typer.echo(f"Revoked the key {name}.", err=True)


@contextmanager
def _keys_file(file: Path | None) -> Iterator[Path]:
    """Yield the path of the key file. Print one line and exit if the file or a setting is not valid."""
    from tidegate.auth.keys import KeysUnusable
    from tidegate.settings import SettingsError, load_settings

    try:
        path = file or load_settings().keys_file
        if path is None:
            raise KeysUnusable("No keys file is given; use --file keys.json, or set TIDEGATE_KEYS_FILE.")
        yield path
    except (KeysUnusable, SettingsError) as error:
        typer.echo(f"tidegate: {error}", err=True)
        raise typer.Exit(1) from None
