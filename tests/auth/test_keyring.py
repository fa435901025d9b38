"""The key file: lookup, changes, and broken files."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tidegate.auth import keyring
from tidegate.auth.keyring import Keyring
from tidegate.auth.keys import KeysUnusable
from tidegate.auth.roles import Role


def test_a_key_is_known_by_itself_alone(tmp_path: Path) -> None:
    """The file contains no secret, and no part of its content is a valid key."""
    path = tmp_path / "keys.json"
    key = keyring.create(path, "spark", Role.REPORT, "flights")
    scheme, key_id, secret = key.split("_", 2)
    keys = Keyring(path)
    found = keys.key(key)
    assert found is not None
    assert (found.name, found.role, found.prefix) == ("spark", Role.REPORT, "flights")
    for wrong in ("", "tdg", "tdg_", f"{scheme}_{key_id}_", f"{scheme}_{key_id}_{secret}x", f"x_{key_id}_{secret}"):
        assert keys.key(wrong) is None
    assert keys.key(f"{scheme}_{key_id}_{found.sha256}") is None
    assert keys.key("tdg_é_\udcff") is None
    assert secret not in path.read_text()
    assert path.stat().st_mode & 0o077 == 0


def test_changes_to_the_file_are_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator loads changes to the file without a restart."""
    monkeypatch.setattr(keyring, "RELOAD_S", 0.0)
    path = tmp_path / "keys.json"
    one = keyring.create(path, "one", Role.READ, "")
    keys = Keyring(path)
    found = keys.key(one)
    assert found is not None
    two = keyring.create(path, "two", Role.ADMIN, "")
    assert keys.key(two) is not None
    keyring.revoke(path, "one")
    assert keys.key(one) is None
    assert not keys.is_valid(found)
    path.write_text("{")
    assert keys.key(two) is not None, "a broken file must leave the previous keys valid"
    path.unlink()
    assert keys.key(two) is not None


def test_a_file_that_stays_broken_is_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The error is logged once per cause, although the coordinator reads the file twice a second."""
    monkeypatch.setattr(keyring, "RELOAD_S", 0.0)
    path = tmp_path / "keys.json"
    presented = keyring.create(path, "first", Role.READ, "")
    ring, whole = keyring.Keyring(path), path.read_text()
    for text, logged in (("{", 1), (whole, 1), ("[", 2)):
        path.write_text(text)
        for _ in range(3):
            assert ring.key(presented) is not None
        assert caplog.text.count("the previous keys stay in force") == logged


def test_concurrent_changes_are_all_stored(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: keyring.create(path, f"key-{n}", Role.READ, ""), range(20)))
    assert {key.name for key in keyring.read(path)} == {f"key-{n}" for n in range(20)}
    assert [entry.name for entry in tmp_path.iterdir()] == ["keys.json"]


def test_invalid_operations_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    with pytest.raises(KeysUnusable, match=r"keys create"):
        Keyring(path)
    keyring.create(path, "one", Role.READ, "")
    with pytest.raises(KeysUnusable, match="already has a key one"):
        keyring.create(path, "one", Role.READ, "")
    for name, prefix in (("a b", ""), ("", ""), ("two", "flights/"), ("two", "x" * 129)):
        with pytest.raises(KeysUnusable, match="letters, digits"):
            keyring.create(path, name, Role.READ, prefix)
    with pytest.raises(KeysUnusable, match="no key two; its keys: one"):
        keyring.revoke(path, "two")
    with pytest.raises(KeysUnusable, match="Cannot write"):
        keyring.create(path / "below", "one", Role.READ, "")
    keyring.revoke(path, "one")
    with pytest.raises(KeysUnusable, match="has no keys"):
        Keyring(path)


@pytest.mark.parametrize("text", ["", "{}", '{"keys": [{"name": "x"}]}', '{"keys": [], "more": 1}', "\x00"])
def test_a_broken_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "keys.json"
    path.write_text(text)
    with pytest.raises(KeysUnusable, match="is not a valid keys file"):
        Keyring(path)


def test_two_keys_of_one_name_are_refused(tmp_path: Path) -> None:
    """The history could not distinguish two keys with one name."""
    path = tmp_path / "keys.json"
    keyring.create(path, "one", Role.READ, "")
    document = json.loads(path.read_text())
    document["keys"].append(document["keys"][0] | {"id": "0" * 12})
    path.write_text(json.dumps(document))
    with pytest.raises(KeysUnusable, match="two keys with the same name"):
        Keyring(path)


def test_all_wrong_keys_take_equally_long(tmp_path: Path) -> None:
    """The lookup of a wrong secret takes as long as the lookup of an unknown id."""
    path = tmp_path / "keys.json"
    key = keyring.create(path, "one", Role.READ, "")
    keys = Keyring(path)
    near = key[:-1] + ("a" if key[-1] != "a" else "b")
    far = "tdg_000000000000_" + key.split("_", 2)[2]
    times = {near: [], far: []}  # type: dict[str, list[float]]
    for _ in range(3000):
        for wrong, taken in times.items():
            began = time.perf_counter()
            assert keys.key(wrong) is None
            taken.append(time.perf_counter() - began)
    medians = [sorted(taken)[len(taken) // 2] for taken in times.values()]
    assert max(medians) < 2 * min(medians)
