"""A replica as a process, with a Redis of its own where none is given."""

import asyncio
import logging
import os
import resource
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

import typer
import uvicorn
from fastapi import FastAPI

from tidegate.api.connections import ConnectionLimits, Connections
from tidegate.api.http_protocol import protocol_of
from tidegate.app import create_app
from tidegate.auth.keyring import Keyring
from tidegate.settings import LOOPBACK, Settings
from tidegate.store.connection import check, connect, without_password
from tidegate.store.embedded import EmbeddedValkey

log = logging.getLogger(__name__)

GRACE_S = 10
FILES_BESIDE_CONNECTIONS = 256
"""Open files that a replica needs beside its HTTP connections: to Redis, logs, libraries."""


class CannotServe(Exception):
    """Why the service does not start, in one line that says what to change."""


def run(settings: Settings, insecure: bool, stop_with_stdin: bool) -> None:
    """Serves until a signal ends it.

    :raises CannotServe, KeysUnusable, StoreUnavailable: where it cannot.
    """
    keyring = None if settings.keys_file is None else Keyring(settings.keys_file)
    if keyring is None and settings.host not in LOOPBACK and not insecure:
        raise CannotServe(
            f"TIDEGATE_HOST is {settings.host}, and there are no keys: anybody who reaches it could move watermarks. "
            "Set TIDEGATE_KEYS_FILE (tidegate keys create), use 127.0.0.1, or --insecure on a network that you trust."
        )
    _on_ending_signals(_end)
    with ExitStack() as stack:
        listening = stack.enter_context(_listen(settings.host, settings.port))
        valkey: EmbeddedValkey | None = None
        key = (
            settings.token_secret.get_secret_value().encode(errors="surrogateescape") if settings.token_secret else None
        )
        if settings.redis_url is None:
            valkey = stack.enter_context(EmbeddedValkey(settings.data_dir))
            redis_url = valkey.url
            where = f"embedded Valkey in {settings.data_dir}"
            key = key or _kept_secret(settings.data_dir)
        else:
            redis_url = settings.redis_url
            where = without_password(redis_url)
            asyncio.run(_check(redis_url))
        host, port = listening.getsockname()[:2]
        server = _Server(create_app(settings, redis_url, key, keyring), settings)
        _on_ending_signals(server.handle_exit)
        if valkey is not None:
            threading.Thread(target=server.stop_with, args=(valkey,), daemon=True, name="valkey").start()
        if stop_with_stdin:
            threading.Thread(target=server.stop_with_stdin, daemon=True, name="stdin").start()
        shown = f"[{host}]" if ":" in host else host
        typer.echo(f"tidegate: serving on http://{shown}:{port}, state in {where}")
        sys.stdout.flush()
        server.run(sockets=[listening])
        if server.valkey_ended:
            raise CannotServe(
                f"The embedded Valkey ended by itself; its log is {settings.data_dir / 'valkey.log'}. "
                "Nothing that was answered is lost: start again."
            )


class _Server(uvicorn.Server):
    """Ends politely: those who wait for a watermark are answered, those who report are finished."""

    def __init__(self, app: FastAPI, settings: Settings) -> None:
        most = _most_connections(settings.max_connections)
        limits = ConnectionLimits(
            connections=most,
            per_address=min(settings.max_connections_per_address, most // 2),
            request_timeout_s=settings.request_timeout_s,
            trusted_proxies=settings.trusted_proxies,
        )
        self._connections = Connections(limits, app.state.metrics)
        # An IPv4 client of a socket that also takes IPv6 has a mapped address.
        proxies = [str(network) for network in settings.trusted_proxies]
        proxies += [
            f"::ffff:{network.network_address}/{96 + network.prefixlen}"
            for network in settings.trusted_proxies
            if network.version == 4
        ]
        super().__init__(
            uvicorn.Config(
                app,
                http=protocol_of(self._connections),  # type: ignore[arg-type]  # it calls what it is given
                ws="none",
                server_header=False,
                access_log=False,
                log_config=None,
                proxy_headers=bool(proxies),
                forwarded_allow_ips=proxies,
                timeout_graceful_shutdown=GRACE_S,
                lifespan="on",
            )
        )
        self._app = app
        self.valkey_ended = False

    async def on_tick(self, counter: int) -> bool:
        """Check connections once a second; uvicorn calls this every 100 ms."""
        if counter % 10 == 0:
            self._connections.check(time.monotonic())
        return await super().on_tick(counter)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves the signals to this program: uvicorn would raise the one that ended it once more when it is done, and
        so end this process before the embedded Valkey was stopped.
        """
        yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        self._send_home()

    def stop_with_stdin(self) -> None:
        while os.read(0, 4096):
            pass
        self.should_exit = True

    def stop_with(self, valkey: EmbeddedValkey) -> None:
        """Without its Valkey this replica can answer nothing: whoever watches over it shall start both again."""
        valkey.wait()
        if not self.should_exit:
            self.valkey_ended = True
            self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._send_home()
        await super().shutdown(sockets)

    def _send_home(self) -> None:
        context = getattr(self._app.state, "context", None)
        if context is not None:
            context.wakeups.close()


def _most_connections(wanted: int) -> int:
    """Raise the limit on open files as far as is allowed; return how many connections it leaves room for."""
    needed = wanted + FILES_BESIDE_CONNECTIONS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return wanted
    most = max(10, soft - FILES_BESIDE_CONNECTIONS)
    log.warning(
        "Serving at most %d connections, not TIDEGATE_MAX_CONNECTIONS=%d: the process may open %d files. "
        "Raise that limit (LimitNOFILE= in systemd, ulimit -Hn in a shell).",
        most,
        wanted,
        soft,
    )
    return most


def _on_ending_signals(handler: Callable[[int, FrameType | None], None]) -> None:
    for ending in (signal.SIGTERM, signal.SIGINT):
        signal.signal(ending, handler)


def _end(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(0)


def _listen(host: str, port: int) -> socket.socket:
    """The socket, bound before anything else is started, so that a port in use leaves nothing behind."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(2048)
    except OSError as error:
        listening.close()
        raise CannotServe(
            f"Cannot listen on {host}:{port} ({error.strerror}); set TIDEGATE_PORT (0: any free one) or TIDEGATE_HOST."
        ) from None
    return listening


async def _check(redis_url: str) -> None:
    redis = connect(redis_url)
    try:
        await check(redis, redis_url)
    finally:
        await redis.aclose()


def _kept_secret(data_dir: Path) -> bytes:
    """The key of the tokens, beside the state and not in it: so that a token can heal a state that was lost."""
    path = data_dir / "token.secret"
    try:
        return bytes.fromhex(path.read_text())
    except (ValueError, IsADirectoryError, PermissionError):
        raise CannotServe(
            f"{path} is not the key that was kept there; put it back, or remove it (tokens given out so far then prove "
            "nothing any more)."
        ) from None
    except FileNotFoundError:
        key = secrets.token_bytes(32)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(key.hex())
        return key
