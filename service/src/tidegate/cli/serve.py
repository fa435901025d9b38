"""``tidegate serve``. The web framework is loaded by it alone: the other commands are not to wait for that."""

import typer


def serve(
    insecure: bool = typer.Option(
        False, "--insecure", help="Serve an address other than loopback although nobody needs a key."
    ),
    stop_with_stdin: bool = typer.Option(
        False, "--stop-with-stdin", help="End when standard input ends: with the program that started this one."
    ),
) -> None:
    """Serve the coordinator. All settings come from the environment, as TIDEGATE_<NAME>."""
    from tidegate.auth.keyring import KeysUnusable
    from tidegate.cli.server import CannotServe, run
    from tidegate.runtime.logs import configure
    from tidegate.settings import SettingsError, load_settings
    from tidegate.store.connection import StoreUnavailable

    try:
        settings = load_settings()
        try:
            configure(settings.log_level, settings.log_format, settings.audit_file)
        except OSError as error:
            raise CannotServe(
                f"Cannot write {settings.audit_file} ({error.strerror}); correct TIDEGATE_AUDIT_FILE."
            ) from None
        run(settings, insecure, stop_with_stdin)
    except (CannotServe, KeysUnusable, SettingsError, StoreUnavailable) as error:
        typer.echo(f"tidegate: {error}", err=True)
        raise typer.Exit(1) from None
