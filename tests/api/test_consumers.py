"""Consumers of frames over HTTP: one process works at a time, and no process moves a position back."""

import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.support.api import BASE, HOUR, HOURS, commit_frames, problem, read
from tidegate.domain.job import MAX_CONSUMERS

Make = Callable[..., str]
FIRST = {"at_ms": 1_357_558_201_000, "start": BASE, "generation": 1}
LATER = FIRST | {"at_ms": FIRST["at_ms"] + 1}


def put(http: httpx.Client, path: str, owner: str, consumer: str = "c", **body: Any) -> httpx.Response:
    return http.put(f"{path}/consumers/{consumer}", json={"owner": owner, "lease_ms": 60_000} | body)


def taken(http: httpx.Client, path: str, owner: str, **body: Any) -> dict[str, Any]:
    """Make a call that succeeds; return the consumer in its answer."""
    answer = put(http, path, owner, **body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()["consumer"]
    return found


def test_a_position_moves_forward_and_is_read_again(http: httpx.Client, make_job: Make) -> None:
    path = make_job(**HOURS)
    assert read(http, f"{path}/consumers")["consumers"] == []
    new = taken(http, path, "one")
    assert (new["consumer"], new["owner"], new["position"], new["moved_ms"]) == ("c", "one", None, None)
    assert taken(http, path, "one", position=FIRST)["position"] == FIRST
    moved = taken(http, path, "one", position=LATER)
    assert moved["position"] == LATER
    assert taken(http, path, "one", position=LATER)["moved_ms"] == moved["moved_ms"], "a repeated call changes nothing"
    assert taken(http, path, "one")["position"] == LATER
    assert read(http, f"{path}/consumers/c")["consumer"]["position"] == LATER
    [listed] = read(http, f"{path}/consumers")["consumers"]
    assert listed["position"] == LATER


@pytest.mark.parametrize(
    "earlier",
    [FIRST, LATER | {"start": BASE - HOUR, "generation": 9}, LATER | {"generation": 1}],
    ids=["at_ms", "start", "generation"],
)
def test_a_position_does_not_move_back(http: httpx.Client, make_job: Make, earlier: dict[str, int]) -> None:
    path = make_job(**HOURS)
    present = LATER | {"generation": 2}
    taken(http, path, "one", position=present)
    refused = problem(put(http, path, "one", position=earlier), 409, "consumer_ahead")
    assert {name: refused[name] for name in present} == present
    assert read(http, f"{path}/consumers/c")["consumer"]["position"] == present


def test_another_process_waits_for_the_end_of_the_lease(http: httpx.Client, make_job: Make) -> None:
    path = make_job(**HOURS)
    until_ms = taken(http, path, "one", lease_ms=1000)["lease_until_ms"]
    refused = problem(put(http, path, "two"), 409, "consumer_held")
    assert (refused["consumer"], refused["owner"], refused["until_ms"]) == ("c", "one", until_ms)
    assert put(http, path, "two", consumer="d").status_code == 200, "another consumer has its own lease"
    time.sleep(max(0, until_ms - read(http, path)["now_ms"]) / 1000 + 0.05)
    assert read(http, f"{path}/consumers/c")["consumer"]["lease_until_ms"] is None
    assert taken(http, path, "two")["owner"] == "two"


def test_a_released_lease_is_free_at_once(http: httpx.Client, make_job: Make) -> None:
    path = make_job(**HOURS)
    taken(http, path, "one", position=FIRST)
    assert taken(http, path, "one", position=LATER, release=True)["lease_until_ms"] is None
    assert taken(http, path, "two")["position"] == LATER


def test_a_former_owner_cannot_move_the_position(http: httpx.Client, make_job: Make) -> None:
    """A slow process whose lease was taken over is refused, also after its successor has ended."""
    path = make_job(**HOURS)
    taken(http, path, "slow", position=FIRST, release=True)
    taken(http, path, "next")
    problem(put(http, path, "slow", position=LATER), 409, "consumer_held")
    taken(http, path, "next", release=True)
    refused = problem(put(http, path, "slow", position=LATER), 409, "consumer_taken_over")
    assert refused["owner"] == "next"
    problem(put(http, path, "slow", release=True), 409, "consumer_taken_over")
    assert taken(http, path, "slow")["position"] == FIRST, "it may take the lease again, and then continue"


def test_a_process_whose_lease_has_ended_continues(http: httpx.Client, make_job: Make) -> None:
    """A delivery that took longer than the lease counts, unless another process has started it again."""
    path = make_job(**HOURS)
    taken(http, path, "one", release=True)
    assert taken(http, path, "one", position=FIRST)["position"] == FIRST


def test_a_reset_keeps_positions_and_later_generations_are_after_them(http: httpx.Client, make_job: Make) -> None:
    path = make_job(**HOURS)
    for number, at in enumerate((BASE, BASE + HOUR + 11)):
        commit_frames(http, path, number, {"a": at})
    before = read(http, f"{path}/frames/{BASE}")["frame"]["generations"][-1]
    position = {"at_ms": before["at_ms"], "start": BASE, "generation": before["generation"]}
    taken(http, path, "one", position=position)
    time.sleep(0.002)
    http.post(f"{path}:reset", json={"reason": "again"}).raise_for_status()
    problem(put(http, path, "two"), 409, "consumer_held")
    assert taken(http, path, "one")["position"] == position
    for number, at in enumerate((BASE, BASE + HOUR + 11)):
        commit_frames(http, path, number, {"a": at})
    after = read(http, f"{path}/frames/{BASE}")["frame"]["generations"][-1]
    assert (after["generation"], after["at_ms"] > before["at_ms"]) == (2, True)


def test_consumers_are_deleted_with_their_job(http: httpx.Client, make_job: Make, job_name: str) -> None:
    path = make_job(**HOURS)
    taken(http, path, "one", position=FIRST)
    http.delete(path).raise_for_status()
    problem(http.get(f"{path}/consumers"), 410, "job_deleted")
    problem(put(http, path, "one"), 410, "job_deleted")
    make_job(**HOURS)
    assert read(http, f"{path}/consumers")["consumers"] == []
    problem(http.get(f"{path}/consumers/c"), 404, "consumer_not_found")


def test_a_consumer_is_forgotten(http: httpx.Client, make_job: Make) -> None:
    path = make_job(**HOURS)
    problem(http.delete(f"{path}/consumers/c"), 404, "consumer_not_found")
    taken(http, path, "one", position=LATER)
    problem(http.delete(f"{path}/consumers/c"), 409, "consumer_held")
    taken(http, path, "one", release=True)
    http.delete(f"{path}/consumers/c", params={"reason": "run all again"}).raise_for_status()
    assert taken(http, path, "two")["position"] is None
    [action] = read(http, f"{path}/history", kind="action")["records"]
    assert (action["action"], action["consumer"], action["reason"]) == ("forget_consumer", "c", "run all again")


def test_a_job_has_a_limited_number_of_consumers(http: httpx.Client, make_job: Make) -> None:
    path = make_job(**HOURS)
    for number in range(MAX_CONSUMERS):
        assert put(http, path, "one", consumer=f"c{number}").status_code == 200
    refused = put(http, path, "one", consumer="more")
    assert problem(refused, 429, "too_many_consumers")["limit"] == MAX_CONSUMERS
    assert put(http, path, "one", consumer="c7").status_code == 200, "those that exist go on"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"owner": None}, "owner"),
        ({"owner": "a/b"}, "owner"),
        ({"lease_ms": 10}, "lease_ms"),
        ({"lease_ms": 25 * HOUR}, "lease_ms"),
        ({"position": {"at_ms": 1, "start": 2}}, "position.generation"),
        ({"position": FIRST | {"generation": 0}}, "position.generation"),
        ({"positon": FIRST}, "positon"),
        ({"release": "yes"}, "release"),
    ],
)
def test_a_wrong_request_is_refused(http: httpx.Client, make_job: Make, body: dict[str, Any], field: str) -> None:
    path = make_job(**HOURS)
    assert problem(put(http, path, **{"owner": "one"} | body), 422, "invalid_request")["field"] == field
    assert read(http, f"{path}/consumers")["consumers"] == []
