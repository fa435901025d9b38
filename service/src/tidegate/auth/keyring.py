"""API keys, in a file that holds their hashes.

A key is ``tdg_<id>_<secret>``, and is shown once, when it is created. Its secret is 256 random bits, so one round of
SHA-256 hides it: slow hashes are for secrets that can be guessed. Every replica reads the file, and reads it again when
it changes.
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
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from tidegate.auth.roles import Role

log = logging.getLogger(__name__)

ID = r"^[A-Za-z0-9._~-]{1,128}$"
SCHEME = "tdg"
RELOAD_S = 1.0


class KeysUnusable(Exception):
    """The file of the keys cannot be used; the message says why, and what to do."""


class Quotas(BaseModel):
    """Limits of one key; None: only those of the service apply.

    Attributes:
        requests_per_s: Calls a second at one replica.
        waiting: Clients that wait for a watermark, or follow a job, at one replica.
        jobs: Jobs whose names begin with the prefix of the key, for creating another one.
        substreams: Substreams of one job, for reporting or declaring another one.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    requests_per_s: int | None = Field(default=None, ge=1)
    waiting: int | None = Field(default=None, ge=1)
    jobs: int | None = Field(default=None, ge=1)
    substreams: int | None = Field(default=None, ge=1)


NO_QUOTAS = Quotas()


class Key(BaseModel):
    """What the file holds of a key, which is for the jobs whose names begin with ``prefix``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=ID)
    role: Role
    prefix: str = Field(default="", pattern=r"^[A-Za-z0-9._~-]{0,128}$")
    id: str = Field(pattern=r"^[0-9a-f]{12}$")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    created: AwareDatetime
    expires: AwareDatetime | None = None
    quotas: Quotas = NO_QUOTAS

    def has_expired(self) -> bool:
        """Return whether the key is no longer valid."""
        return self.expires is not None and self.expires.timestamp() <= time.time()


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    keys: tuple[Key, ...]


class Keyring:
    """The keys of a file, as it is now."""

    def __init__(self, path: Path) -> None:
        """:raises KeysUnusable: where the file cannot be read, or holds no key."""
        self._problem = ""
        self._path = path
        self._seen, self._keys = self._read()
        self._next_look = time.monotonic() + RELOAD_S
        if not self._keys:
            raise KeysUnusable(f"{path} holds no key, so nobody could do anything; make one: tidegate keys create")

    def key(self, presented: str) -> Key | None:
        """Return the key that was presented, valid or expired; None if there is none.

        It takes as long for a key that is nearly right as for any other.
        """
        scheme, _, rest = presented.partition("_")
        key_id, _, secret = rest.partition("_")
        key = self._current().get(key_id)
        genuine = hmac.compare_digest(_hash(secret), key.sha256 if key else _hash(""))
        return key if genuine and scheme == SCHEME else None

    def known(self, key_id: str) -> Key | None:
        """Return the key with that id, unless it was revoked or has expired."""
        key = self._current().get(key_id)
        return None if key is None or key.has_expired() else key

    def stands(self, key: Key) -> bool:
        """Return whether a key has not been revoked or changed since, and has not expired.

        A new time of expiry, as a rotation sets it, is no change.
        """
        known = self.known(key.id)
        return known is not None and (known.sha256, known.role, known.prefix) == (key.sha256, key.role, key.prefix)

    def keys(self) -> list[Key]:
        """Return all keys, in the order of the file."""
        return list(self._current().values())

    def refresh(self) -> None:
        """Read the file again if it has changed."""
        self._next_look = 0.0
        self._current()

    def _current(self) -> dict[str, Key]:
        if time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + RELOAD_S
            try:
                if _identity(self._path) != self._seen:
                    self._seen, self._keys = self._read()
                    log.info("Read %s again: %d keys.", self._path, len(self._keys))
            except (KeysUnusable, OSError) as error:
                if str(error) != self._problem:
                    log.error("The keys stay as they were: %s", error)
                self._problem = str(error)
            else:
                self._problem = ""
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
    if len({key.id for key in keys}) < len(keys):
        raise KeysUnusable(f"{path} has two keys with one id; remove one of them.")
    if len({(key.name, key.role, key.prefix) for key in keys}) > len({key.name for key in keys}):
        raise KeysUnusable(f"{path} has two different keys with one name; remove one of them.")
    lasting = [key.name for key in keys if key.expires is None]
    if len(set(lasting)) < len(lasting):
        raise KeysUnusable(f"{path} has two keys with one name, and neither expires; remove one of them.")
    return keys


def create(
    path: Path, name: str, role: Role, prefix: str, lasts: timedelta | None = None, quotas: Quotas = NO_QUOTAS
) -> str:
    """Create a key and write its hash to the file, which is created if it does not exist.

    Returns:
        The key itself.

    Raises:
        KeysUnusable: If there is a key of that name, the name or the prefix is not valid, or the file fails.
    """
    now = _now()
    expires = None if lasts is None else now + lasts
    try:
        presented, key = _new(name=name, role=role, prefix=prefix, created=now, expires=expires, quotas=quotas)
    except ValidationError as error:
        raise KeysUnusable(
            f"{error.errors()[0]['loc'][0]}: letters, digits and . _ ~ - only, 128 at the most; that is what jobs are "
            "called."
        ) from None
    with _changing(path) as keys:
        if any(known.name == name for known in keys):
            raise KeysUnusable(
                f"{path} has a key {name} already; replace it (tidegate keys rotate), revoke it first, or choose "
                "another name."
            )
        _write(path, [*keys, key])
    return presented


def rotate(path: Path, name: str, keep: timedelta) -> str:
    """Create another key under the same name; those before it expire after ``keep``.

    Returns:
        The new key.

    Raises:
        KeysUnusable: If there is no key of that name, or the file fails.
    """
    now = _now()
    with _changing(path) as keys:
        before = _named(path, keys, name)[-1]
        lasts = None if before.expires is None else before.expires - before.created
        presented, key = _new(
            name=name,
            role=before.role,
            prefix=before.prefix,
            quotas=before.quotas,
            created=now,
            expires=None if lasts is None else now + lasts,
        )
        kept = []
        for known in keys:
            if known.name == name:
                ends = now + keep if known.expires is None else min(known.expires, now + keep)
                known = known.model_copy(update={"expires": ends})
            if known.name != name or not known.has_expired():
                kept.append(known)
        _write(path, [*kept, key])
    return presented


def revoke(path: Path, name: str) -> None:
    """Remove all keys of a name.

    Raises:
        KeysUnusable: If there is none, or the file fails.
    """
    with _changing(path) as keys:
        removed = _named(path, keys, name)
        _write(path, [key for key in keys if key not in removed])


def _named(path: Path, keys: Iterable[Key], name: str) -> list[Key]:
    """Return the keys of a name, at least one, oldest first."""
    found = [key for key in keys if key.name == name]
    if not found:
        known = ", ".join(dict.fromkeys(key.name for key in keys)) or "none"
        raise KeysUnusable(f"{path} has no key {name}; it has {known}.")
    return found


def _new(**members: Any) -> tuple[str, Key]:
    """Return a new key as it is presented, and what is kept of it."""
    key_id, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
    return f"{SCHEME}_{key_id}_{secret}", Key(id=key_id, sha256=_hash(secret), **members)


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)


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
            listed = [key.model_dump(mode="json", exclude_defaults=True) for key in keys]
            json.dump({"keys": listed}, file, indent=2)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
