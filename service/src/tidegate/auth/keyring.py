"""Commands that change the file of the API keys, and the keys that a replica has read from the file.

The commands write times of the machine on which they run. A replica compares them with the time of Redis.
"""

import asyncio
import fcntl
import json
import logging
import os
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from tidegate.auth.keys import NO_QUOTAS, SCHEME, Key, KeysUnusable, Quotas, has_secret, new_key, split_key
from tidegate.auth.roles import Role

log = logging.getLogger(__name__)

RELOAD_S = 1.0


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    keys: tuple[Key, ...]


class Keyring:
    """The keys of a file, read again after each change of the file.

    Attributes:
        now_s: Function that returns the Unix time at which keys expire. A replica sets it to the time of Redis.

    Raises:
        KeysUnusable: If the file cannot be read, or has no key.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.now_s: Callable[[], float] = time.time
        self._logged_error = ""
        self._version, self._keys = self._read()
        self._next_check = time.monotonic() + RELOAD_S
        if not self._keys:
            raise KeysUnusable(
                f"{path} has no keys, so the service would refuse every call; create a key (tidegate keys create)."
            )

    def key(self, presented: str) -> Key | None:
        """Return a presented key, which may have expired, or None if it does not exist."""
        scheme, key_id, secret = split_key(presented)
        key = self._current().get(key_id)
        genuine = has_secret(key, secret)
        return key if genuine and scheme == SCHEME else None

    def key_with_id(self, key_id: str) -> Key | None:
        """Return the key with an id, or None if it was revoked or has expired."""
        key = self._current().get(key_id)
        return None if key is None or self.has_expired(key) else key

    def has_expired(self, key: Key) -> bool:
        """Return whether a key has expired."""
        return key.has_expired(self.now_s())

    def is_valid(self, key: Key) -> bool:
        """Return whether the file still contains an unexpired key with the same id, secret, role and prefix.

        A key with a changed expiry time or changed quotas remains valid.
        """
        current = self.key_with_id(key.id)
        if current is None:
            return False
        return (current.sha256, current.role, current.prefix) == (key.sha256, key.role, key.prefix)

    def keys(self) -> list[Key]:
        """Return all keys, in file order."""
        return list(self._current().values())

    def refresh(self) -> None:
        """Read the file again if it has changed."""
        self._next_check = 0.0
        self._current()

    def _current(self) -> dict[str, Key]:
        if time.monotonic() >= self._next_check:
            self._next_check = time.monotonic() + RELOAD_S
            try:
                if _version(self._path) != self._version:
                    self._version, self._keys = self._read()
                    log.info("Reloaded %s: %d keys.", self._path, len(self._keys))
                self._logged_error = ""
            except KeysUnusable as error:
                if str(error) != self._logged_error:
                    log.error("Cannot read the changed keys; the previous keys stay in force: %s", error)
                self._logged_error = str(error)
        return self._keys

    def _read(self) -> tuple[tuple[int, ...], dict[str, Key]]:
        version = _version(self._path)
        return version, {key.id: key for key in read(self._path)}


def read(path: Path) -> tuple[Key, ...]:
    """Return the keys of a file.

    Raises:
        KeysUnusable: If the file cannot be read or is not valid. The message contains no hashes.
    """
    try:
        keys = _File.model_validate_json(path.read_bytes()).keys
    except OSError as error:
        raise _unreadable(path, error) from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise KeysUnusable(f"{path} is not a valid keys file ({place}: {first['msg']}); restore the file.") from None
    if len({key.id for key in keys}) < len(keys):
        raise KeysUnusable(f"{path} has two keys with the same id; remove one of them.")
    if len({(key.name, key.role, key.prefix) for key in keys}) > len({key.name for key in keys}):
        raise KeysUnusable(
            f"{path} has two keys with the same name and different roles or prefixes; remove one of them."
        )
    unlimited = [key.name for key in keys if key.expires is None]
    if len(set(unlimited)) < len(unlimited):
        raise KeysUnusable(f"{path} has two keys with the same name that do not expire; remove one of them.")
    return keys


def create(
    path: Path, name: str, role: Role, prefix: str, lasts: timedelta | None = None, quotas: Quotas = NO_QUOTAS
) -> str:
    """Create a key, and write its hash to the file. Create the file if it does not exist.

    Returns:
        The key as its user presents it.

    Raises:
        KeysUnusable: If the name is in use, the name or the prefix is not valid, or the file cannot be written.
    """
    now = _now()
    expires = None if lasts is None else now + lasts
    try:
        presented, key = new_key(name=name, role=role, prefix=prefix, created=now, expires=expires, quotas=quotas)
    except ValidationError as error:
        raise KeysUnusable(
            f"{error.errors()[0]['loc'][0]}: use at most 128 characters: letters, digits and . _ ~ -"
        ) from None
    with _locked(path) as keys:
        if any(existing.name == name for existing in keys):
            raise KeysUnusable(
                f"{path} already has a key {name}; replace it (tidegate keys rotate), revoke it, or choose another "
                "name."
            )
        _write(path, [*keys, key])
    return presented


def rotate(path: Path, name: str, keep: timedelta) -> str:
    """Create another key with an existing name. Previous keys with this name expire after ``keep`` at the latest.

    Returns:
        The new key as its user presents it.

    Raises:
        KeysUnusable: If no key has that name, or the file cannot be written.
    """
    now = _now()
    with _locked(path) as keys:
        latest = _with_name(path, keys, name)[-1]
        expires = None if latest.expires is None else now + (latest.expires - latest.created)
        members = {"role": latest.role, "prefix": latest.prefix, "quotas": latest.quotas}
        presented, key = new_key(name=name, created=now, expires=expires, **members)
        kept = [_expiring(existing, now + keep) if existing.name == name else existing for existing in keys]
        _write(
            path,
            [
                *(existing for existing in kept if existing.name != name or not existing.has_expired(now.timestamp())),
                key,
            ],
        )
    return presented


def revoke(path: Path, name: str) -> None:
    """Remove all keys with a name.

    Raises:
        KeysUnusable: If no key has that name, or the file cannot be written.
    """
    with _locked(path) as keys:
        removed = _with_name(path, keys, name)
        _write(path, [key for key in keys if key not in removed])


def _with_name(path: Path, keys: Iterable[Key], name: str) -> list[Key]:
    """Return the keys with a name, oldest first."""
    named = [key for key in keys if key.name == name]
    if not named:
        existing = ", ".join(dict.fromkeys(key.name for key in keys)) or "none"
        raise KeysUnusable(f"{path} has no key {name}; its keys: {existing}.")
    return named


def _expiring(key: Key, at: datetime) -> Key:
    return key.model_copy(update={"expires": at if key.expires is None else min(key.expires, at)})


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)


def _unreadable(path: Path, error: OSError) -> KeysUnusable:
    return KeysUnusable(
        f"Cannot read {path} ({error.strerror}); create a key (tidegate keys create), or correct TIDEGATE_KEYS_FILE."
    )


def _version(path: Path) -> tuple[int, ...]:
    """Return a value that changes when the file is written or replaced."""
    try:
        status = path.stat()
    except OSError as error:
        raise _unreadable(path, error) from None
    return status.st_ino, status.st_mtime_ns, status.st_size


@contextmanager
def _locked(path: Path) -> Iterator[tuple[Key, ...]]:
    """Lock the file against changes by other processes, and yield its keys."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # The lock is on the directory, because a separate lock file would remain.
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            fcntl.flock(directory, fcntl.LOCK_EX)
            yield read(path) if path.exists() else ()
        finally:
            os.close(directory)
    except OSError as error:
        raise KeysUnusable(
            f"Cannot write {path} ({error.strerror}); correct its permissions, or choose another file."
        ) from None


def _write(path: Path, keys: Iterable[Key]) -> None:
    # A replica may read the file at any time, so a complete new file replaces it atomically.
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


Item = TypeVar("Item")

CHECK_S = 0.5


class Revocation:
    """A task that ends streams whose keys were revoked or have expired.

    A stream may have no events for a long time, so one task checks the keys of all streams.
    """

    def __init__(self, keyring: Keyring | None) -> None:
        self._keyring = keyring
        self._waiting: dict[asyncio.Timeout, Key | None] = {}

    def is_valid(self, key: Key | None) -> bool:
        """Return whether a key is still valid. Return True if the caller has no key."""
        return self._keyring is None or key is None or self._keyring.is_valid(key)

    async def while_valid(self, items: AsyncIterator[Item], key: Key | None) -> AsyncIterator[Item]:
        """Yield items until they end or the key becomes invalid. ``key`` is None if the caller has no key."""
        while self.is_valid(key):
            try:
                async with asyncio.timeout(None) as waiting:
                    self._waiting[waiting] = key
                    item = await anext(items)
            except StopAsyncIteration:
                return
            except TimeoutError:
                if waiting.expired():
                    return
                raise
            finally:
                self._waiting.pop(waiting, None)
            yield item

    async def run(self) -> None:
        """Check keys until cancelled."""
        while self._keyring is not None:
            await asyncio.sleep(CHECK_S)
            self._keyring.refresh()
            for waiting in [waiting for waiting, key in self._waiting.items() if not self.is_valid(key)]:
                del self._waiting[waiting]
                waiting.reschedule(asyncio.get_running_loop().time())
