"""The process of a replica, with an embedded Valkey unless a Redis is configured."""

import asyncio
import gc
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
from contextlib import ExitStack, aclosing, contextmanager
from functools import partial
from pathlib import Path
from types import FrameType

import typer
import uvicorn
from fastapi import FastAPI
from redis.exceptions import RedisError

from tidegate.app import create_app, store_servers
from tidegate.auth.keyring import Keyring
from tidegate.http.connection import Connection, Connections
from tidegate.runtime.logs import configure
from tidegate.settings import LOOPBACK, Settings
from tidegate.store import shared
from tidegate.store.checks import check_all, reachable
from tidegate.store.connection import without_password
from tidegate.store.embedded import EmbeddedValkey
from tidegate.store.functions import delete_other_versions

log = logging.getLogger(__name__)

SHUTDOWN_S = 10
"""Maximum time in seconds that calls in progress have to end when the server stops."""
CLIENTS_S = 5
"""Time in seconds that clients then have to send the rest of a request, or to read the rest of an answer."""
BACKLOG = 2048
OTHER_FILES = 256
"""Number of files that a replica opens in addition to its HTTP connections: for Redis, logs and libraries."""
MIN_CONNECTIONS = 10
SOCKET_BUFFER_BYTES = 128 * 1024
"""Size of the send buffer and of the receive buffer of a connection. Linux can use twice as much memory for each."""
UNSENT_BYTES = 32 * 1024
"""Bytes that the kernel takes over before the client has room for them. Further bytes wait for the client to read."""


class CannotServe(Exception):
    """Raised when the service cannot start or continue. The message is one line that says what to do."""


def serve(settings: Settings, *, insecure: bool, stop_with_stdin: bool) -> None:
    """Serve until a signal, the end of standard input or the end of the embedded Valkey stops the server.

    Args:
        settings: Settings of the service.
        insecure: Whether to allow addresses other than loopback without keys.
        stop_with_stdin: Whether to stop at the end of standard input.

    Raises:
        CannotServe: If the address, a file or the embedded Valkey cannot be used, or if the embedded Valkey ends.
        KeysUnusable: If the key file cannot be used.
        StoreUnavailable: If Redis cannot be used.
    """
    _configure_logs(settings)
    keyring = _keyring(settings, insecure)
    _on_end_signals(lambda *_: sys.exit(0))
    with ExitStack() as stack:
        listening = stack.enter_context(_listen(settings))
        url, valkey = _open_store(settings, stack)
        token_key = asyncio.run(_check(settings, url, _token_key(settings)))
        server = _Server(create_app(settings, url, token_key, keyring), settings)
        _on_end_signals(server.handle_exit)
        if valkey is not None:
            _start_thread(server.stop_after, valkey)
        if stop_with_stdin:
            _start_thread(server.stop_after_stdin)
        host, port = listening.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        place = without_password(url) if valkey is None else f"embedded Valkey in {settings.data_dir}"
        typer.echo(f"tidegate: serving on http://{shown}:{port}, state in {place}")
        sys.stdout.flush()
        _collect_less_often()
        server.run(sockets=[listening])
        if server.valkey_ended:
            raise CannotServe(
                f"The embedded Valkey ended unexpectedly; its log is {settings.data_dir / 'valkey.log'}. No answered "
                "call is lost. Start the service again."
            )


def _collect_less_often() -> None:
    """Let the garbage collector ignore the modules, and run less often.

    A large report creates ten thousands of tuples, and each would otherwise be visited several times: half of the time
    of a batch of 10 000 substreams.
    """
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def _configure_logs(settings: Settings) -> None:
    try:
        configure(settings.log_level, settings.log_format, settings.audit_file)
    except OSError as error:
        raise CannotServe(
            f"Cannot write {settings.audit_file} ({error.strerror}); correct TIDEGATE_AUDIT_FILE."
        ) from None


def _keyring(settings: Settings, insecure: bool) -> Keyring | None:
    if settings.keys_file is not None:
        return Keyring(settings.keys_file)
    if settings.host not in LOOPBACK and not insecure:
        raise CannotServe(
            f"TIDEGATE_HOST is {settings.host} and the service has no keys, so every client on the network could move "
            "watermarks. Set TIDEGATE_KEYS_FILE (tidegate keys create), use 127.0.0.1, or add --insecure on a trusted "
            "network."
        )
    return None


def _open_store(settings: Settings, stack: ExitStack) -> tuple[str, EmbeddedValkey | None]:
    """Return the address of the store, and the embedded server unless a Redis is configured."""
    if settings.redis_url is not None:
        return settings.redis_url, None
    valkey = stack.enter_context(EmbeddedValkey(settings.data_dir))
    return valkey.url, valkey


def _token_key(settings: Settings) -> bytes | None:
    """Return the key of the watermark tokens, or None to use the key in Redis."""
    if settings.token_secret is not None:
        return settings.token_secret.get_secret_value().encode(errors="surrogateescape")
    return _stored_secret(settings.data_dir) if settings.redis_url is None else None


class _Server(uvicorn.Server):
    """A server that answers waiting clients and finishes reports before it ends."""

    def __init__(self, app: FastAPI, settings: Settings) -> None:
        max_connections = _max_connections(settings.max_connections)
        self._connections = Connections(settings, max_connections, app.state.metrics)
        # A socket for both IPv4 and IPv6 shows an IPv4 client with an IPv4-mapped IPv6 address.
        proxies = [str(network) for network in settings.trusted_proxies]
        proxies += [
            f"::ffff:{network.network_address}/{96 + network.prefixlen}"
            for network in settings.trusted_proxies
            if network.version == 4
        ]
        super().__init__(
            uvicorn.Config(
                app,
                http=partial(Connection, self._connections),  # type: ignore[arg-type]  # any factory works
                ws="none",
                server_header=False,
                access_log=False,
                log_config=None,
                proxy_headers=bool(proxies),
                forwarded_allow_ips=proxies,
                timeout_graceful_shutdown=SHUTDOWN_S,
                lifespan="on",
            )
        )
        self._app = app
        self.valkey_ended = False

    async def on_tick(self, counter: int) -> bool:
        """Check connections once a second. uvicorn calls this method every 100 ms."""
        if counter % 10 == 0:
            self._connections.check(time.monotonic())
        return await super().on_tick(counter)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers, because :func:`serve` installs them.

        uvicorn would raise the signal again after its shutdown, which would end the process before the embedded Valkey
        is stopped.
        """
        yield

    def stop_after_stdin(self) -> None:
        """Stop at the end of standard input."""
        while os.read(0, 4096):
            pass
        self.should_exit = True

    def stop_after(self, valkey: EmbeddedValkey) -> None:
        """Stop when the embedded Valkey ends, so that a supervisor restarts the service with Valkey."""
        valkey.wait()
        if not self.should_exit:
            self.valkey_ended = True
            self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer waiting clients, and shut down."""
        self._app.state.context.wakeups.close()
        timer = asyncio.get_running_loop().call_later(CLIENTS_S, self._connections.stop_waiting)
        await super().shutdown(sockets)
        timer.cancel()


def _max_connections(wanted: int) -> int:
    """Raise the limit on open files, if needed and allowed, and return the number of possible connections."""
    needed = wanted + OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return wanted
    possible = max(MIN_CONNECTIONS, soft - OTHER_FILES)
    log.warning(
        "Serving at most %d connections, not TIDEGATE_MAX_CONNECTIONS=%d, because the process may open only %d files. "
        "Raise the limit on open files (LimitNOFILE= in systemd, ulimit -Hn in a shell).",
        possible,
        wanted,
        soft,
    )
    return possible


def _start_thread(target: Callable[..., None], *arguments: object) -> None:
    threading.Thread(target=target, args=arguments, daemon=True, name=target.__name__).start()


def _on_end_signals(handler: Callable[[int, FrameType | None], None]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handler)


def _listen(settings: Settings) -> socket.socket:
    """Return a listening socket. Valkey starts later, so that a port in use leaves no Valkey running."""
    host, port = settings.host, settings.port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Connections inherit these options. By default, Linux would take megabytes for a client that does not read.
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER_BYTES)
    if sys.platform == "linux":
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        # The kernel also ends connections whose answer fits into its buffers, and those that the service has closed.
        timeout_ms = max(1, round(settings.request_timeout_s * 1000))
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, timeout_ms)
    try:
        listening.bind((host, port))
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise CannotServe(
            f"Cannot listen on {host}:{port} ({error.strerror}); set TIDEGATE_PORT (0 for a free port), or "
            "TIDEGATE_HOST."
        ) from None
    return listening


async def _check(settings: Settings, redis_url: str, token_key: bytes | None) -> bytes:
    """Check the store, and return the key of the watermark tokens: the given one, or the one in the store.

    Raises:
        StoreUnavailable: If the store cannot be used, or has no key and accepts no writes.
    """
    async with aclosing(store_servers(settings, redis_url)) as servers:
        await check_all(servers, redis_url)
        try:
            for server in await servers.all():
                await delete_other_versions(server.redis)
        except RedisError as error:  # a server that is full or read-only; the functions only use memory
            log.warning("Cannot delete the functions of other versions from Redis: %s", error)
        if token_key is not None:
            return token_key
        with reachable(redis_url):
            return await shared.token_secret(servers)


def _stored_secret(data_dir: Path) -> bytes:
    """Return the key of the watermark tokens from its file.

    The file survives a loss of the store, so clients' tokens can then restore the watermarks.
    """
    path = data_dir / "token.secret"
    try:
        key = bytes.fromhex(path.read_text())
        if not key:  # a full disk leaves an empty file
            raise ValueError("the file is empty")
        return key
    except (ValueError, IsADirectoryError, PermissionError):
        raise CannotServe(
            f"Cannot read the key of the watermark tokens in {path}: expected hexadecimal digits; restore the file, or "
            "delete it to create a new key. A new key makes all issued tokens invalid."
        ) from None
    except FileNotFoundError:
        key = secrets.token_bytes(32)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(key.hex())
        return key
