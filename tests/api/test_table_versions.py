"""Versions of tables over HTTP: queries tell them, and frames that are finished have them in their records."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.support.api import BASE, HOUR, HOURS, RUN, commit_frames, problem, read

Make = Callable[..., str]
HIGHEST = 2**63 - 1


def table(version: object = "7", name: str = "lake.db.hours") -> dict[str, object]:
    return {"table": name, "version": version}


def told(http: httpx.Client, path: str) -> list[dict[str, Any]]:
    """Return the versions in the status of the query."""
    (query,) = read(http, f"{path}/queries")["queries"]
    outputs: list[dict[str, Any]] = query["outputs"]
    return outputs


def test_a_finished_frame_has_the_versions_of_its_tables(http: httpx.Client, make_job: Make) -> None:
    path = make_job(**HOURS)
    commit_frames(http, path, 0, {"a": BASE}, outputs=[table("1")])
    frame = read(http, f"{path}/frames/{BASE}")["frame"]
    assert (frame["state"], frame["outputs"], frame["generations"]) == ("open", [], [])
    commit_frames(http, path, 1, {"a": BASE + HOUR + 11}, outputs=[table("2"), table("0", "Größen @ 10 Uhr")])
    commit_frames(http, path, 2, {"a": BASE + HOUR + 12}, outputs=[table("3")])
    (_, frame) = read(http, f"{path}/frames")["frames"]
    expected = [{"query": "q", **table("0", "Größen @ 10 Uhr")}, {"query": "q", **table("2")}]
    assert (frame["state"], frame["outputs"]) == ("complete", expected)
    assert [each["outputs"] for each in frame["generations"]] == [expected]
    assert told(http, path) == [table("0", "Größen @ 10 Uhr"), table("3")]


@pytest.mark.parametrize("version", [2**53 - 1, 2**53 + 1, 5937117119577207001, HIGHEST - 1, HIGHEST])
def test_versions_are_exact_in_each_call(http: httpx.Client, make_job: Make, version: int) -> None:
    """Redis and JSON have numbers of 53 bits, and Iceberg chooses ids of 64 bits by chance."""
    path, exact = make_job(**HOURS), table(str(version))
    begun = http.put(f"{path}/queries/q/batches/0", json=RUN | {"outputs": [exact]})
    assert (begun.status_code, told(http, path)) == (200, [exact])
    commit_frames(http, path, 0, {"a": BASE}, outputs=[table("1")])
    assert told(http, path) == [table("1")]
    body = RUN | {"observed_ms": 0, "after_batch": 0, "outputs": [exact]}
    http.post(f"{path}/queries/q:heartbeat", json=body).raise_for_status()
    commit_frames(http, path, 1, {"a": BASE + HOUR + 11})
    assert read(http, f"{path}/frames/{BASE}")["frame"]["outputs"] == [{"query": "q", **exact}]


@pytest.mark.parametrize(
    ("outputs", "field"),
    [
        (None, "outputs"),
        ([table("1"), table("2")], "outputs"),
        ([table(name=str(number)) for number in range(21)], "outputs"),
        ([table(name="")], "outputs.0.table"),
        ([table(name="x" * 1001)], "outputs.0.table"),
        ([table(name="a\nb")], "outputs.0.table"),
        ([table(), table(str(HIGHEST + 1), "t")], "outputs.1.version"),
        *(
            ([table(version)], "outputs.0.version")
            for version in ("", "-1", "+1", "01", "1.0", "1e3", " 1", "1\n", "v1", "²", "١", "9" * 400, 7, 7.0, None)
        ),
        ([table() | {"query": "q"}], "outputs.0.query"),
        ([{"table": "t"}], "outputs.0.version"),
    ],
)
@pytest.mark.parametrize("call", ["begin", "commit", "heartbeat"])
def test_invalid_versions_are_refused(
    http: httpx.Client, make_job: Make, call: str, outputs: object, field: str
) -> None:
    path = f"{make_job()}/queries/q"
    method, suffix, more = {
        "begin": ("PUT", "/batches/0", {}),
        "commit": ("POST", "/batches/0:commit", {}),
        "heartbeat": ("POST", ":heartbeat", {"observed_ms": 0}),
    }[call]
    answer = http.request(method, f"{path}{suffix}", json={**RUN, **more, "outputs": outputs})
    assert problem(answer, 422, "invalid_request")["field"] == field


def test_the_longest_list_is_accepted(http: httpx.Client, make_job: Make) -> None:
    path = make_job(**HOURS)
    outputs = [table(str(HIGHEST - number), f"{number:04}" + "é" * 996) for number in range(20)]
    commit_frames(http, path, 0, {"a": BASE}, outputs=outputs)
    commit_frames(http, path, 1, {"a": BASE + HOUR + 11}, outputs=[])
    assert told(http, path) == outputs
    assert read(http, f"{path}/frames/{BASE}")["frame"]["outputs"] == [{"query": "q", **each} for each in outputs]


def test_a_client_that_tells_no_versions_is_served_as_before(http: httpx.Client, make_job: Make) -> None:
    path = make_job(**HOURS)
    commit_frames(http, path, 0, {"a": BASE})
    commit_frames(http, path, 1, {"a": BASE + HOUR + 11})
    frame = read(http, f"{path}/frames/{BASE}")["frame"]
    assert (frame["state"], frame["outputs"], frame["generations"][0]["outputs"]) == ("complete", [], [])
    assert told(http, path) == []


def test_the_answers_about_a_batch_name_the_first_unfinished_frame(http: httpx.Client, make_job: Make) -> None:
    path = make_job(**HOURS)
    begun = http.put(f"{path}/queries/q/batches/0", json=RUN).json()
    assert begun["unfinished_frame"] is None
    assert commit_frames(http, path, 0, {"a": BASE + 5})["unfinished_frame"] == BASE
    assert commit_frames(http, path, 1, {"a": BASE + HOUR + 11})["unfinished_frame"] == BASE + HOUR
    assert http.put(f"{path}/queries/q/batches/2", json=RUN).json()["unfinished_frame"] == BASE + HOUR
    assert read(http, f"{path}/frames")["unfinished"] == BASE + HOUR


def test_a_job_without_frames_has_no_unfinished_one(http: httpx.Client, make_job: Make) -> None:
    path = make_job()
    assert http.put(f"{path}/queries/q/batches/0", json=RUN).json()["unfinished_frame"] is None
    committed = http.post(f"{path}/queries/q/batches/0:commit", json=RUN | {"outputs": [table()]}).json()
    assert (committed["applied"], committed["unfinished_frame"]) == (True, None)
    assert told(http, path) == [table()]


def test_another_run_tells_its_own_versions(http: httpx.Client, make_job: Make) -> None:
    """The previous run may have died between a write and the call that tells it, so its versions may be too old."""
    path = make_job(**HOURS)
    commit_frames(http, path, 0, {"a": BASE}, outputs=[table("1")])
    another = RUN | {"run_id": "run-2"}
    http.put(f"{path}/queries/q/batches/1", json=another).raise_for_status()
    assert told(http, path) == []
    http.put(f"{path}/queries/q/batches/1", json=another | {"outputs": [table("2")]}).raise_for_status()
    body = another | {"observed_ms": 0, "after_batch": 0, "outputs": [table("3")]}
    http.post(f"{path}/queries/q:heartbeat", json=body).raise_for_status()
    assert told(http, path) == [table("3")]
