"""The key file: lookup, changes, broken files, and the clock by which keys expire."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from tests.support.api import login, problem
from tests.support.programs import FAKETIME, absent
from tidegate.auth import keyring
from tidegate.auth.keyring import Keyring
from tidegate.auth.keys import KeysUnusable
from tidegate.auth.roles import Role
from tidegate.store.clock import ClockGuard
from tidegate.store.embedded import EmbeddedValkey
from tidegate_spark.testing import CoordinatorProcess


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


def test_the_clock_of_keys_is_that_of_redis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A jump of the local clock changes nothing: the clock of Redis continues from its last reading."""
    path = tmp_path / "keys.json"
    presented = keyring.create(path, "one", Role.READ, "", timedelta(hours=1))
    keys, guard, began_s = Keyring(path), ClockGuard(60_000), time.time()
    key = keys.key(presented)
    assert key is not None
    keys.now_s = guard.now_s
    assert not keys.has_expired(key), "before the first reading, the local clock applies"
    guard.accept(round((began_s + 7200) * 1000))
    for jump_s in (0, 10**6, -(10**6)):
        monkeypatch.setattr(time, "time", lambda jump_s=jump_s: began_s + jump_s)
        assert keys.has_expired(key)
        assert keys.key_with_id(key.id) is None
    guard.accept(round(began_s * 1000))  # the clock of Redis was wrong, and is corrected
    assert not keys.has_expired(key)
    assert keys.is_valid(key)


def test_keys_and_sessions_do_not_follow_the_clock_of_a_coordinator(
    valkey: EmbeddedValkey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two coordinators, whose clocks are a day slow and a day fast, accept the same keys and the same sessions."""
    if not FAKETIME.exists():
        absent("libfaketime was not found: run apt-get install faketime.")
    path = tmp_path / "keys.json"
    valid = keyring.create(path, "valid", Role.READ, "", timedelta(hours=1))
    expired = keyring.create(path, "expired", Role.READ, "", timedelta(hours=1))
    document = json.loads(path.read_text())
    document["keys"][1]["expires"] = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
    path.write_text(json.dumps(document))
    monkeypatch.setenv("LD_PRELOAD", str(FAKETIME))
    monkeypatch.setenv("FAKETIME_DONT_FAKE_MONOTONIC", "1")
    with ExitStack() as stack:
        clients: list[httpx.Client] = []
        for clock in ("-1d", "+1d"):
            monkeypatch.setenv("FAKETIME", clock)
            started = CoordinatorProcess(tmp_path / clock, redis_url=valkey.url, keys_file=str(path))
            clients.append(stack.enter_context(httpx.Client(base_url=stack.enter_context(started).url, timeout=60)))
        for http in clients:
            for key, status in ((valid, 200), (expired, 401)):
                answer = http.get("/v1/jobs", headers={"Authorization": f"Bearer {key}"})
                assert answer.status_code == status, answer.text
            problem(answer, 401, "key_expired")
        for opened, other in ((clients[0], clients[1]), (clients[1], clients[0])):
            assert login(opened, expired).status_code == 401
            assert login(opened, valid).status_code == 303
            cookie = {"tidegate_session": opened.cookies["tidegate_session"]}
            assert httpx.get(f"{other.base_url}", cookies=cookie).status_code == 200
