"""API keys: who may do what to which jobs, in a file that holds nothing but their hashes.

A key is ``tdg_<id>_<secret>``, and is shown once, when it is made. Its secret is 256 random bits, so one round of
SHA-256 hides it: slow hashes are for secrets that can be guessed. Every replica reads the file, again when it changes.
"""

import fcntl
import hashlib
import hmac
import json
import logging
import os
import secrets
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

log = logging.getLogger(__name__)

ID = r"^[A-Za-z0-9._~-]{1,128}$"
SCHEME = "tdg"
RELOAD_S = 2.0


class Role(StrEnum):
    """What a key is for. ``report``: a Spark job's; it creates jobs and reports to them, and changes no rules."""

    READ = "read"
    REPORT = "report"
    OPERATE = "operate"
    ADMIN = "admin"


class KeysUnusable(Exception):
    """The file of the keys cannot be used; the message says why, and what to do."""


class Key(BaseModel):
    """What is kept of a key. ``prefix``: it is for the jobs whose names begin so."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=ID)
    role: Role
    prefix: str = Field(default="", pattern=r"^[A-Za-z0-9._~-]{0,128}$")
    id: str = Field(pattern=r"^[0-9a-f]{12}$")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    created: datetime


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    keys: tuple[Key, ...]


class Keyring:
    """The keys of a file, as it is now."""

    def __init__(self, path: Path) -> None:
        """:raises KeysUnusable: where the file cannot be read, or holds no key."""
        self._path = path
        self._seen, self._keys = self._read()
        self._next_look = time.monotonic() + RELOAD_S
        if not self._keys:
            raise KeysUnusable(f"{path} holds no key, so nobody could do anything; make one: tidegate keys create")

    def key(self, presented: str) -> Key | None:
        """The key that was presented, if it is one. Takes as long for one that is nearly right as for any other."""
        scheme, _, rest = presented.partition("_")
        key_id, _, secret = rest.partition("_")
        key = self._current().get(key_id)
        genuine = hmac.compare_digest(_hash(secret), key.sha256 if key else _hash(""))
        return key if genuine and scheme == SCHEME else None

    def known(self, key_id: str) -> Key | None:
        """The key with that id, unless it was revoked."""
        return self._current().get(key_id)

    def stands(self, key: Key) -> bool:
        """Whether it has not been revoked since."""
        return self.known(key.id) == key

    def _current(self) -> dict[str, Key]:
        if time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + RELOAD_S
            try:
                if _identity(self._path) != self._seen:
                    self._seen, self._keys = self._read()
                    log.info("Read %s again: %d keys.", self._path, len(self._keys))
            except (KeysUnusable, OSError) as error:
                log.error("The keys stay as they were: %s", error)
        return self._keys

    def _read(self) -> tuple[tuple[int, ...], dict[str, Key]]:
        try:
            seen = _identity(self._path)
        except OSError as error:
            raise KeysUnusable(
                f"Cannot read {self._path} ({error.strerror}); make a key (tidegate keys create), or correct "
                "TIDEGATE_KEYS_FILE."
            ) from None
        return seen, {key.id: key for key in read(self._path)}


def read(path: Path) -> tuple[Key, ...]:
    """:raises KeysUnusable: naming what is wrong in the file, but no content of it."""
    try:
        keys = _File.model_validate_json(path.read_bytes()).keys
    except OSError as error:
        raise KeysUnusable(f"Cannot read {path} ({error.strerror}).") from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise KeysUnusable(f"{path} is no file of keys ({place}: {first['msg']}); put the right one back.") from None
    for member in ("name", "id"):
        if len({getattr(key, member) for key in keys}) < len(keys):
            raise KeysUnusable(f"{path} has two keys with one {member}; remove one of them.")
    return keys


def create(path: Path, name: str, role: Role, prefix: str) -> str:
    """Makes a key, and keeps its hash in the file, which is made if need be. Returns the key itself.

    :raises KeysUnusable: where there is a key of that name, the name or the prefix cannot be one, or the file fails.
    """
    key_id, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
    try:
        key = Key(
            name=name, role=role, prefix=prefix, id=key_id, sha256=_hash(secret),
            created=datetime.now(UTC).replace(microsecond=0),
        )  # fmt: skip
    except ValidationError as error:
        raise KeysUnusable(
            f"{error.errors()[0]['loc'][0]}: letters, digits and . _ ~ - only, 128 at the most; that is what jobs are "
            "called."
        ) from None
    with _changing(path) as keys:
        if any(known.name == name for known in keys):
            raise KeysUnusable(f"{path} has a key {name} already; revoke it first, or choose another name.")
        _write(path, [*keys, key])
    return f"{SCHEME}_{key_id}_{secret}"


def revoke(path: Path, name: str) -> None:
    """:raises KeysUnusable: where there is no such key, or the file fails."""
    with _changing(path) as keys:
        left = [key for key in keys if key.name != name]
        if len(left) == len(keys):
            known = ", ".join(key.name for key in keys) or "none"
            raise KeysUnusable(f"{path} has no key {name}; it has {known}.")
        _write(path, left)


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="surrogateescape")).hexdigest()


def _identity(path: Path) -> tuple[int, ...]:
    """What changes when the file is written or replaced."""
    status = path.stat()
    return status.st_ino, status.st_mtime_ns, status.st_size


@contextmanager
def _changing(path: Path) -> Iterator[tuple[Key, ...]]:
    """The keys as they are, while nobody else changes them."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield read(path) if path.exists() else ()
        finally:
            os.close(folder)
    except OSError as error:
        raise KeysUnusable(f"Cannot write {path} ({error.strerror}).") from None


def _write(path: Path, keys: Iterable[Key]) -> None:
    """Whole or not at all: a replica may read it at any moment."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name + ".")
    try:
        with open(handle, "w") as file:
            json.dump({"keys": [key.model_dump(mode="json") for key in keys]}, file, indent=2)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
